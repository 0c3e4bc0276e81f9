-- The TensorExpress header for Wireshark and tshark; docs/wire.md draws it, header.py is the codec.

local UDP_PORT = 21592
local MAGIC = 0x5458
local VERSION = 1
local HEADER_BYTES = 32
local KIND_SUM = 4
local KIND_PART = 5
local WORKERS_BYTES = 8
local SUM_BYTES = 16

local KINDS = { [0] = "gradient", [1] = "parameters", [2] = "acknowledgement", [3] = "control", [4] = "sum", [5] = "part" }

local tensorexpress = Proto("tensorexpress", "TensorExpress")

local function field(make, name, label, ...)
    return make("tensorexpress." .. name, label, ...)
end

local fields = {
    magic = field(ProtoField.uint16, "magic", "Magic", base.HEX),
    version = field(ProtoField.uint8, "version", "Version", base.DEC, nil, 0xF0),
    kind = field(ProtoField.uint8, "kind", "Kind", base.DEC, KINDS, 0x0F),
    flags = field(ProtoField.uint8, "flags", "Flags", base.HEX),
    job = field(ProtoField.uint16, "job", "Job", base.DEC),
    worker = field(ProtoField.uint16, "worker", "Worker", base.DEC),
    iteration = field(ProtoField.uint32, "iteration", "Iteration", base.DEC),
    tensor = field(ProtoField.uint16, "tensor", "Tensor", base.DEC),
    queue = field(ProtoField.uint8, "queue", "Queue asked for", base.DEC),
    reserved = field(ProtoField.uint8, "reserved", "Reserved", base.HEX),
    chunk = field(ProtoField.uint32, "chunk", "Chunk", base.DEC),
    chunks = field(ProtoField.uint32, "chunks", "Chunks of the tensor", base.DEC),
    slack_us = field(ProtoField.int32, "slack_us", "Slack in microseconds", base.DEC),
    payload_bytes = field(ProtoField.uint16, "payload_bytes", "Payload length in bytes", base.DEC),
    reserved_tail = field(ProtoField.uint16, "reserved_tail", "Reserved", base.HEX),
}

-- The bits of `flags`, by their names in header.py.
local flag_fields = {
    field(ProtoField.bool, "flags.retransmitted", "Retransmitted", 8, nil, 0x01),
    field(ProtoField.bool, "flags.last_of_slice", "Last chunk of a slice", 8, nil, 0x02),
    field(ProtoField.bool, "flags.asks_ack", "Asks for an acknowledgement", 8, nil, 0x04),
    field(ProtoField.bool, "flags.marked", "Marked on the way", 8, nil, 0x08),
}

-- The 16 bytes before the values of a packet that switches sum; sum_header.py is the codec. Exponents have 128 added.
local sum_fields = {
    { field(ProtoField.uint32, "sum.epoch", "Epoch", base.DEC), 0, 4 },
    { field(ProtoField.uint32, "sum.turn", "Turn of the slot", base.DEC), 4, 4 },
    { field(ProtoField.uint16, "sum.slot", "Slot", base.DEC), 8, 2 },
    { field(ProtoField.uint16, "sum.check", "Check of the values", base.DEC), 10, 2 },
    { field(ProtoField.uint8, "sum.exponent", "Exponent, 128 added", base.DEC), 12, 1 },
    { field(ProtoField.uint8, "sum.needed", "Exponent needed, 128 added", base.DEC), 13, 1 },
    { field(ProtoField.uint8, "sum.culprit", "Worker whose values are not finite, 1 added", base.DEC), 14, 1 },
    { field(ProtoField.bool, "sum.result", "Result", 8, nil, 0x01), 15, 1 },
    { field(ProtoField.bool, "sum.overflow", "Overflow", 8, nil, 0x02), 15, 1 },
}

-- Before them in packets that say whose values are in.
local workers_field = field(ProtoField.uint64, "sum.workers", "Workers whose values are in, a bit for each", base.HEX)

-- Where each field lies: name, first byte, bytes.
local LAYOUT = {
    { "magic", 0, 2 },
    { "version", 2, 1 },
    { "kind", 2, 1 },
    { "flags", 3, 1 },
    { "job", 4, 2 },
    { "worker", 6, 2 },
    { "iteration", 8, 4 },
    { "tensor", 12, 2 },
    { "queue", 14, 1 },
    { "reserved", 15, 1 },
    { "chunk", 16, 4 },
    { "chunks", 20, 4 },
    { "slack_us", 24, 4 },
    { "payload_bytes", 28, 2 },
    { "reserved_tail", 30, 2 },
}

local declared = {}
for _, place in ipairs(LAYOUT) do
    table.insert(declared, fields[place[1]])
end
for _, flag in ipairs(flag_fields) do
    table.insert(declared, flag)
end
for _, place in ipairs(sum_fields) do
    table.insert(declared, place[1])
end
table.insert(declared, workers_field)
tensorexpress.fields = declared

local wrong_length = ProtoExpert.new(
    "tensorexpress.wrong_length",
    "The payload is not as long as the header says; switches and hosts take this for no tensor packet",
    expert.group.MALFORMED,
    expert.severity.ERROR
)
tensorexpress.experts = { wrong_length }

function tensorexpress.dissector(buffer, packet, tree)
    if buffer:len() < HEADER_BYTES or buffer(0, 2):uint() ~= MAGIC or buffer(2, 1):bitfield(0, 4) ~= VERSION then
        return 0
    end
    local subtree = tree:add(tensorexpress, buffer(0, HEADER_BYTES))
    for _, place in ipairs(LAYOUT) do
        local name, first, bytes = place[1], place[2], place[3]
        local item = subtree:add(fields[name], buffer(first, bytes))
        if name == "flags" then
            for _, flag in ipairs(flag_fields) do
                item:add(flag, buffer(first, bytes))
            end
        elseif name == "payload_bytes" and buffer(first, bytes):uint() ~= buffer:reported_len() - HEADER_BYTES then
            item:add_proto_expert_info(wrong_length)
        end
    end
    local start, kind = HEADER_BYTES, buffer(2, 1):bitfield(4, 4)
    if kind == KIND_PART and buffer:len() >= start + WORKERS_BYTES + SUM_BYTES then
        subtree:add(workers_field, buffer(start, WORKERS_BYTES))
        start = start + WORKERS_BYTES
    end
    if (kind == KIND_SUM or start > HEADER_BYTES) and buffer:len() >= start + SUM_BYTES then
        for _, place in ipairs(sum_fields) do
            subtree:add(place[1], buffer(start + place[2], place[3]))
        end
        start = start + SUM_BYTES
    end

    packet.cols.protocol = "TensorExpress"
    packet.cols.info = string.format(
        "%s job %d worker %d iteration %d tensor %d chunk %d/%d queue %d slack %d us",
        KINDS[buffer(2, 1):bitfield(4, 4)] or "unknown kind",
        buffer(4, 2):uint(),
        buffer(6, 2):uint(),
        buffer(8, 4):uint(),
        buffer(12, 2):uint(),
        buffer(16, 4):uint(),
        buffer(20, 4):uint(),
        buffer(14, 1):uint(),
        buffer(24, 4):int()
    )
    if buffer:len() > start then
        Dissector.get("data"):call(buffer(start):tvb(), packet, tree)
    end
    return buffer:len()
end

DissectorTable.get("udp.port"):add(UDP_PORT, tensorexpress)

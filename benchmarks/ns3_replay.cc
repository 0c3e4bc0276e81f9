// Replays a packet file through a star of hosts around one output-queued switch, built from ns-3's parts.
//
//   host NIC ──PointToPointChannel──> switch ──PointToPointChannel──> host
//   (DropTailQueue)                   (DropTailQueue, or K of them in strict priority)
//
// The model is kept as cheap as ns-3 allows, so that a comparison errs in ns-3's favour: no IP stack, no traffic
// control, no tracing; receive callbacks sit on the devices and skip the node's protocol demultiplexer; a packet is
// known by the uid ns-3 gives it anyway, where a tag would be written and searched; the switch forwards the packet
// it received, not a copy; each host holds one pending injection, so the event list stays short.
//
// Times agree to the picosecond with any exact model of the same network, as long as bytes * 8 / rate is a whole
// number of picoseconds and ties are broken alike. ns-3 runs events of one picosecond in the order they were
// scheduled, which matters in two cases:
// - two packets reach one port together: random injection times make this rare;
// - under strict priority, a packet arrives as the port becomes free. Random times do not prevent it: packets sent
//   back to back by one host keep their spacing. The arrival was scheduled first, and so can be served next, if its
//   serialisation + delay exceeds the serialisation of the packet that leaves. Where packet sizes differ by less than
//   delay * rate / 8 bytes that always holds, and ns-3 then agrees with "arrivals before departures".

#include <ns3/core-module.h>
#include <ns3/drop-tail-queue.h>
#include <ns3/network-module.h>
#include <ns3/point-to-point-channel.h>
#include <ns3/point-to-point-net-device.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

using namespace ns3;

namespace
{

// PointToPointNetDevice prepends a PPP header, which is part of the bytes on the wire.
constexpr int32_t PPP_HEADER_BYTES = 2;

// The device takes IPv4 and IPv6 only; nothing in this model reads the number.
constexpr uint16_t PROTOCOL_NUMBER = 0x0800;

// Needs the fewest instructions a packet of ns-3's five schedulers at 8 hosts; --SchedulerType=NAME overrides it.
const char* const SCHEDULER = "ns3::PriorityQueueScheduler";

// One record of the packet file, little endian, without padding.
struct PacketRecord
{
    int64_t time_ps;
    int32_t src;
    int32_t dst;
    int32_t bytes;
    int32_t rank;
};

static_assert(sizeof(PacketRecord) == 24);

struct Options
{
    std::string packets;
    std::string arrivals;
    uint32_t hosts = 0;
    uint64_t rate_bps = 0;
    int64_t delay_ps = 0;
    std::string discipline = "fifo";
    uint32_t queues = 1;
};

[[noreturn]] void
Fail(const std::string& message)
{
    std::cerr << message << std::endl;
    std::exit(2);
}

void
Require(bool condition, const std::string& message)
{
    if (!condition)
    {
        Fail(message);
    }
}

// What is replayed and what came of it; a packet's uid leads to its record at every hop.
struct Replay
{
    std::vector<PacketRecord> records;
    std::vector<int64_t> arrivals_ps;
    std::vector<uint32_t> record_of_uid;
    size_t delivered = 0;

    uint32_t IndexOf(const Packet& packet) const
    {
        return record_of_uid[packet.GetUid()];
    }

    Ptr<Packet> MakePacket(uint32_t index)
    {
        auto packet = Create<Packet>(records[index].bytes - PPP_HEADER_BYTES);
        const auto uid = packet->GetUid();
        if (uid >= record_of_uid.size())
        {
            record_of_uid.resize(uid + 1);
        }
        record_of_uid[uid] = index;
        return packet;
    }
};

// Unlimited for every purpose here: more packets than a file can hold.
Ptr<DropTailQueue<Packet>>
MakeFifo()
{
    auto queue = CreateObject<DropTailQueue<Packet>>();
    queue->SetMaxSize(QueueSize(QueueSizeUnit::PACKETS, UINT32_MAX));
    return queue;
}

// K queues of which the lowest-numbered non-empty one is served; the packet's rank is its queue.
class StrictPriorityQueue : public Queue<Packet>
{
  public:
    StrictPriorityQueue(const Replay& replay, uint32_t queues)
        : m_replay(replay)
    {
        for (uint32_t i = 0; i < queues; ++i)
        {
            m_queues.push_back(MakeFifo());
        }
    }

    bool Enqueue(Ptr<Packet> packet) override
    {
        return m_queues[m_replay.records[m_replay.IndexOf(*packet)].rank]->Enqueue(packet);
    }

    Ptr<Packet> Dequeue() override
    {
        const auto queue = MostUrgent();
        return queue ? queue->Dequeue() : nullptr;
    }

    Ptr<Packet> Remove() override
    {
        const auto queue = MostUrgent();
        return queue ? queue->Remove() : nullptr;
    }

    Ptr<const Packet> Peek() const override
    {
        const auto queue = MostUrgent();
        return queue ? queue->Peek() : nullptr;
    }

  private:
    DropTailQueue<Packet>* MostUrgent() const
    {
        for (const auto& queue : m_queues)
        {
            if (!queue->IsEmpty())
            {
                return PeekPointer(queue);
            }
        }
        return nullptr;
    }

    const Replay& m_replay;
    std::vector<Ptr<DropTailQueue<Packet>>> m_queues;
};

// A point-to-point device has one peer and ignores the address.
void
SendOn(PointToPointNetDevice& device, Ptr<Packet> packet)
{
    static const Address anyone;
    device.Send(packet, anyone, PROTOCOL_NUMBER);
}

// Hands a host's packets to its NIC, each at its own time.
class Source
{
  public:
    Source(Replay& replay, Ptr<PointToPointNetDevice> nic)
        : m_replay(replay),
          m_nic(nic)
    {
    }

    void Add(uint32_t index)
    {
        m_indices.push_back(index);
    }

    void ScheduleNext()
    {
        if (m_next < m_indices.size())
        {
            const auto due = PicoSeconds(m_replay.records[m_indices[m_next]].time_ps);
            Simulator::Schedule(due - Simulator::Now(), &Source::Send, this);
        }
    }

  private:
    void Send()
    {
        SendOn(*m_nic, m_replay.MakePacket(m_indices[m_next++]));
        ScheduleNext();
    }

    Replay& m_replay;
    Ptr<PointToPointNetDevice> m_nic;
    std::vector<uint32_t> m_indices;
    size_t m_next = 0;
};

Ptr<PointToPointNetDevice>
AddDevice(Ptr<Node> node, Ptr<PointToPointChannel> channel, Ptr<Queue<Packet>> queue, const Options& options)
{
    auto device = CreateObject<PointToPointNetDevice>();
    device->SetAddress(Mac48Address::Allocate());
    device->SetDataRate(DataRate(options.rate_bps));
    device->SetQueue(queue);
    node->AddDevice(device);
    device->Attach(channel);
    return device;
}

class Star
{
  public:
    Star(Replay& replay, const Options& options)
        : m_replay(replay)
    {
        auto hub = CreateObject<Node>();
        for (uint32_t i = 0; i < options.hosts; ++i)
        {
            auto channel = CreateObject<PointToPointChannel>();
            channel->SetAttribute("Delay", TimeValue(PicoSeconds(options.delay_ps)));
            auto nic = AddDevice(CreateObject<Node>(), channel, MakeFifo(), options);
            nic->SetReceiveCallback(MakeCallback(&Star::Deliver, this));
            auto port = AddDevice(hub, channel, MakePortQueue(options), options);
            port->SetReceiveCallback(MakeCallback(&Star::Forward, this));
            m_ports.push_back(port);
            m_sources.emplace_back(replay, nic);
        }
        for (uint32_t i = 0; i < replay.records.size(); ++i)
        {
            m_sources[replay.records[i].src].Add(i);
        }
        for (auto& source : m_sources)
        {
            source.ScheduleNext();
        }
    }

  private:
    Ptr<Queue<Packet>> MakePortQueue(const Options& options) const
    {
        if (options.discipline == "strict")
        {
            return CreateObject<StrictPriorityQueue>(m_replay, options.queues);
        }
        return MakeFifo();
    }

    bool Forward(Ptr<NetDevice>, Ptr<const Packet> packet, uint16_t, const Address&)
    {
        // The channel made this copy for its receiver alone, so it may be changed and sent on.
        SendOn(*m_ports[m_replay.records[m_replay.IndexOf(*packet)].dst], ConstCast<Packet>(packet));
        return true;
    }

    bool Deliver(Ptr<NetDevice>, Ptr<const Packet> packet, uint16_t, const Address&)
    {
        m_replay.arrivals_ps[m_replay.IndexOf(*packet)] = Simulator::Now().GetPicoSeconds();
        ++m_replay.delivered;
        return true;
    }

    Replay& m_replay;
    std::vector<Ptr<PointToPointNetDevice>> m_ports;
    std::vector<Source> m_sources;
};

Options
ParseOptions(int argc, char* argv[])
{
    Options options;
    CommandLine command(__FILE__);
    command.AddValue("packets", "packet file to read", options.packets);
    command.AddValue("arrivals", "file of int64 arrival times in ps to write", options.arrivals);
    command.AddValue("hosts", "hosts around the switch", options.hosts);
    command.AddValue("rate", "rate of every link in bit/s", options.rate_bps);
    command.AddValue("delay", "propagation delay of every link in ps", options.delay_ps);
    command.AddValue("discipline", "of the switch's ports: fifo or strict", options.discipline);
    command.AddValue("queues", "queues of a port under strict priority", options.queues);
    command.Parse(argc, argv);
    Require(options.discipline == "fifo" || options.discipline == "strict",
            "unknown discipline '" + options.discipline + "'; accepted: fifo, strict");
    Require(options.rate_bps > 0, "rate is 0 bit/s; accepted: 1 or more");
    Require(options.delay_ps >= 0, "delay is negative; accepted: 0 ps or more");
    return options;
}

// Returns what is wrong with a record, or nullptr.
const char*
Complaint(const PacketRecord& record, int64_t previous_ps, const Options& options)
{
    const auto below = [](int32_t value, uint32_t limit) { return value >= 0 && uint32_t(value) < limit; };
    if (record.time_ps < previous_ps)
    {
        return "time_ps must be 0 or more and in ascending order";
    }
    if (!below(record.src, options.hosts) || !below(record.dst, options.hosts))
    {
        return "src and dst must be 0 or more and less than the number of hosts";
    }
    if (record.bytes < PPP_HEADER_BYTES)
    {
        return "bytes must be 2 or more, to hold the PPP header";
    }
    if (options.discipline == "strict" && !below(record.rank, options.queues))
    {
        return "rank must be 0 or more and less than the number of queues";
    }
    return nullptr;
}

void
Check(const std::vector<PacketRecord>& records, const Options& options)
{
    int64_t previous_ps = 0;
    for (size_t i = 0; i < records.size(); ++i)
    {
        if (const auto complaint = Complaint(records[i], previous_ps, options))
        {
            Fail("packet " + std::to_string(i) + ": " + complaint);
        }
        previous_ps = records[i].time_ps;
    }
}

std::vector<PacketRecord>
ReadRecords(const std::string& path)
{
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    Require(file.good(), "cannot read packet file '" + path + "'");
    const auto size = size_t(file.tellg());
    Require(size % sizeof(PacketRecord) == 0, "packet file '" + path + "' is not a whole number of records");
    std::vector<PacketRecord> records(size / sizeof(PacketRecord));
    file.seekg(0);
    file.read(reinterpret_cast<char*>(records.data()), std::streamsize(size));
    Require(file.good(), "cannot read packet file '" + path + "'");
    return records;
}

void
WriteArrivals(const std::string& path, const std::vector<int64_t>& arrivals_ps)
{
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(arrivals_ps.data()),
               std::streamsize(arrivals_ps.size() * sizeof(int64_t)));
    file.close();
    Require(file.good(), "cannot write arrival file '" + path + "'");
}

double
SecondsToRun()
{
    const auto start = std::chrono::steady_clock::now();
    Simulator::Run();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

} // namespace

int
main(int argc, char* argv[])
{
    Time::SetResolution(Time::PS);
    Config::SetGlobal("SchedulerType", StringValue(SCHEDULER));
    const auto options = ParseOptions(argc, argv);
    Replay replay;
    replay.records = ReadRecords(options.packets);
    Check(replay.records, options);
    replay.arrivals_ps.resize(replay.records.size());
    replay.record_of_uid.reserve(replay.records.size());
    Star star(replay, options);
    const auto seconds = SecondsToRun();
    Simulator::Destroy();
    Require(replay.delivered == replay.records.size(), "ns-3 did not deliver every packet");
    WriteArrivals(options.arrivals, replay.arrivals_ps);
    std::cout << replay.delivered << " packets in " << seconds << " s" << std::endl;
    return 0;
}

"""Wrong inputs to every verb: one line that says what is wrong, the right exit status, and nothing left behind."""

import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.thorough import rest

from tensorexpress.cli import VERBS, main
from tensorexpress.switch.pcap import TimedFrame, write_pcap
from tensorexpress.target import speed

#: Exit statuses by the rule of tensorexpress.errors: what the input can mend, and what the machine or network did.
INPUT, MACHINE = 2, 1

PREDICT = [
    ("predict missing.toml", INPUT, "missing.toml: cannot be read (No such file"),
    ("predict folder", INPUT, "folder: cannot be read (Is a directory)"),
    ("predict empty.toml --set job.workers=0", INPUT, "--set job.workers: found 0; accepted: a count from 1"),
    ("predict binary", INPUT, "byte 0xff is not UTF-8"),
    ("predict cut.toml", INPUT, "cut.toml:2: not TOML"),
    ("predict nan.toml", INPUT, "nan.toml: loss: found nan; accepted: a number from 0"),
    ("predict escape.toml", INPUT, r"escape.toml: name: found 'a\x1b[2Jb'; accepted: a name of 1 to 200 letters"),
    ("predict 'new\nline.toml'", INPUT, r"new\nline.toml: cannot be read"),
    ("predict $'\x1b[31mred.toml'", INPUT, "cannot be read"),
    ("predict small.toml other.toml", INPUT, "found 'other.toml' beyond the arguments that are accepted"),
    ("predict --set job.model", INPUT, "--set: found 'job.model'; accepted: KEY=VALUE"),
    ("predict --set =5", INPUT, "--set: found '=5'; accepted: KEY=VALUE"),
    ("predict --set job..model=vgg16", INPUT, "accepted: KEY=VALUE"),
    ("predict --set job.model=vgg61", INPUT, "unknown model 'vgg61'; did you mean"),
    ("predict --set jobs.model=vgg16", INPUT, "unknown key or section 'jobs'; did you mean 'job'?"),
    ("predict --set job.7.model=vgg16", INPUT, "found index 7; accepted: 0 to 1"),
    ("predict --set job.workers=1e9", INPUT, "accepted: a count from 1"),
    ("predict --set job.workers=99999999999999999999", INPUT, "accepted: a count from 1"),
    ("predict --set job.batch=many", INPUT, "job.batch: found 'many'"),
    ("predict --set loss=nan", INPUT, "--set loss: found nan; accepted: a number from 0 to below 1"),
    ("predict --set loss=-0.1", INPUT, "--set loss: found -0.1"),
    ("predict --set cluster.bandwidth=ten", INPUT, "'ten' is not a rate; accepted: a number and one of bps"),
    ("predict --set cluster.bandwidth=10", INPUT, "job0 could take 46099 days; accepted: at most 53"),
    ("predict --set cluster.bandwidth='10 parsec'", INPUT, "'10 parsec' is not a rate"),
    ("predict --set cluster.bandwidth='-10 Gbps'", INPUT, "'-10 Gbps' is negative; a rate is zero or more"),
    ("predict --set cluster.delay='3 Gbps'", INPUT, "'3 Gbps' is not a time"),
    ("predict --set cluster.mtu=64", INPUT, "--set cluster.mtu: found 64; accepted: more than transport.header"),
    ("predict --policy fifo:sum=mixed", INPUT, "unknown sum 'mixed'; Accepted: front, hashed, none, pool"),
    ("predict --policy bytescheduler:sum=pool", INPUT, "accepted with sum=pool: credit=none"),
    ("predict --policy switchml --set cluster.mtu=900", INPUT, "cluster.mtu: found 900; accepted: 1100 or more"),
    ("predict --policy switchml --set job.architecture=fsdp", INPUT, "job.0.architecture: found fsdp; accepted: one"),
    ("predict --policy switchml --set job.workers=1", INPUT, "job.0.workers: found one host; accepted: two or more"),
    ("predict --policy switchml --set job.workers=65", INPUT, "switch s0 would sum for 65 hosts and switches below it"),
    ("predict --policy switchml --set job.compression=3", INPUT, "job.0.compression: found 3.0; accepted: 1: switches"),
    ("predict --policy switchml --grain 4", INPUT, "grain 4: switchml sums in switches, packet by packet; accepted: 1"),
    ("predict --set job.architecture=async --policy fifo", INPUT, "--policy: found with architecture async"),
    ("predict --set job.architecture=async --grain 4", INPUT, "--grain: found with architecture async"),
    ("predict --set job.architecture=async --engine simpy", INPUT, "--engine: found with architecture async"),
    ("predict --set job.architecture=async --scale 2", INPUT, "--scale: found with architecture async"),
    ("predict --set job.architecture=async --save runs", INPUT, "--save: found with architecture async"),
    (
        "predict --set job.architecture=async --set commits.tau=0",
        INPUT,
        "commits.tau: found 0 with 8 workers; accepted: 7",
    ),
    ("predict --set cluster.topology=torus", INPUT, "unknown topology 'torus'"),
    ("predict --set cluster.k=4", INPUT, "topology 'star' has no 'k'; accepted: hosts"),
    ("predict --set job.dtype=fp8", INPUT, "--set job.dtype: unknown dtype 'fp8'; "),
    (
        "predict --set job.device=v100 --set job.dtype=bf16",
        INPUT,
        "job.dtype: device v100 computes in no 'bf16' here; accepted: fp32, fp16; bf16 is on devices a100, h100, h200",
    ),
    ("predict --set job.samples_per_second=-1", INPUT, "found -1; accepted: a number from 0 to below 1e+09"),
    ("predict --set job.samples_per_second=1e-300", INPUT, "found 1e-300 samples/s; accepted: 1e-06 to"),
    ("predict --set job.samples_per_second=0.00001", INPUT, "--set job.samples_per_second: layer conv1 computes for"),
    (
        "predict small.toml --set job.samples_per_second=9",
        INPUT,
        "job.samples_per_second: layers has no batch; accepted",
    ),
    ("predict --set job.compression=0.5", INPUT, "found 0.5; accepted: a number from 1 to below 10000"),
    ("predict --set job.compression_rate=1", INPUT, "job.compression: layer conv1 computes for"),
    ("predict --set job.model=llama2-70b --set job.device=k80 --set job.batch=9999", INPUT, "job.batch: layer block0"),
    ("predict --set job.csv=missing.csv", INPUT, "--set job.csv"),
    ("predict --set job.csv=binary", INPUT, "--set job.csv"),
    (
        "predict --set job.csv=idle.csv --set job.workers=1 --set job.colocated=true",
        INPUT,
        "default: iterations of job0 take no time: its layers compute for 0 s, and nothing of it crosses a link",
    ),
    (
        "predict --set change.link=h0-h1 --set change.share=0.5",
        INPUT,
        "--set change.link: unknown link 'h0-h1'; accepted:",
    ),
    (
        "predict --set change.worker=h0 --set change.factor=nan",
        INPUT,
        "--set change.factor: found nan; accepted: a number",
    ),
    ("predict --set change.link=h0-s0 --set change.rate=1e30", INPUT, "--set change.rate: "),
    ("predict --set 'compute.stragglers={h0=nan}'", INPUT, "accepted: a table of workers with factors"),
    ("predict --policy fifoo", INPUT, "--policy: unknown policy 'fifoo'; did you mean 'fifo'?"),
    ("predict --policy ''", INPUT, "--policy: unknown policy ''"),
    ("predict --policy fifo,fifo", INPUT, "--policy: policy 'fifo' is given 2 times"),
    ("predict --policy fifo:slice=2", INPUT, "--policy: policy 'fifo:slice=2': slice: '2' is not a size"),
    ("predict --policy fifo:colour=red", INPUT, "unknown choice 'colour'"),
    ("predict --policy 'fifo:slice=1 B' --set job.model=vgg16", INPUT, "accepted: at most 1000000 slices"),
    ("predict --engine warp", INPUT, "--engine: found 'warp'; accepted: auto, simpy, fast"),
    ("predict --grain 0", INPUT, "--grain: found '0'; accepted: a number of packets from 1 on, or auto"),
    ("predict --grain 1.5", INPUT, "--grain: found '1.5'; accepted: a number of packets from 1 on, or auto"),
    ("predict --grain 9999999", INPUT, "grain 9999999: found no number of packets from 1 to 1856"),
    ("predict --grain 2 --set loss=0.1", INPUT, "grain 2: default has loss: packets of a train would all be lost"),
    ("predict --grain 2 --set transport.ecn='30 KB'", INPUT, "grain 2: default has transport.ecn"),
    (
        "predict --replan 1s",
        INPUT,
        "--replan: no link and no background traffic of the scenario changes; accepted: with",
    ),
    (
        "predict --set change.link=h0-s0 --set change.share=0.5 --replan soon",
        INPUT,
        "--replan: 'soon' is not a time; accepted: a number and one of ps",
    ),
    ("predict --set change.link=h0-s0 --set change.share=0.5 --replan -1s", INPUT, "--replan: '-1s' is negative"),
    (
        "predict --set change.link=h0-s0 --set change.share=0.5 --replan 1s --save d",
        INPUT,
        "--replan goes without --save: a trace file has one plan",
    ),
    (
        "predict --set change.link=h0-s0 --set change.share=0.5 --replan 1s --policy switchml",
        INPUT,
        "policy 'switchml' has sums end in switches",
    ),
    ("predict --scale 0", INPUT, "--scale: found 0; accepted: a whole number from 1 on"),
    ("predict --scale 1.5", INPUT, "--scale: found '1.5'; accepted: a whole number from 1 on"),
    ("predict --scale", INPUT, "option '--scale' requires an argument"),
    ("predict --seeds 0", INPUT, "--seeds: found 0; accepted: a whole number from 1 to 1000"),
    ("predict --json nowhere/a.json", INPUT, "cannot write 'nowhere/a.json': No such file or directory"),
    ("predict --json folder", INPUT, "cannot write 'folder': it is a directory"),
    ("predict --json - --csv -", INPUT, "2 outputs are to go to - (standard output)"),
    ("predict --json out --csv ./out", INPUT, "2 outputs are to go to '"),
    ("predict --plot a.bmp", INPUT, "its ending is '.bmp'; accepted: .png, .svg, .pdf"),
    ("predict --plot -", INPUT, "its ending is ''; accepted: .png, .svg, .pdf"),
    ("predict --trace -", INPUT, "--trace -: goes to no standard output; accepted: the name of a file"),
    ("predict --save small.toml", INPUT, "cannot write to 'small.toml'"),
    ("predict --calibration missing.json", INPUT, "missing.json: cannot be read"),
    ("predict --calibration empty", INPUT, "empty: is not JSON"),
    ("predict --calibration plan.json", INPUT, "plan.json: "),
    ("predict --colour red", INPUT, "unknown option '--colour'; see `tensorexpress predict --help`"),
]

SWEEP = [
    ("sweep --set job.architecture=async", INPUT, "architecture: found async, which has no iterations to plan"),
    ("sweep --threshold nan", INPUT, "--threshold: found nan; accepted: a number from 1.0 to 1000.0"),
    ("sweep --threshold inf", INPUT, "--threshold: found inf"),
    ("sweep --threshold 0.5", INPUT, "--threshold: found 0.5"),
    ("sweep --threshold large", INPUT, "--threshold: found 'large'; accepted: a number from 1.0"),
    ("sweep --processes 0", INPUT, "--processes: found 0; accepted: a whole number from 1 on"),
    ("sweep --vary cluster.bandwidth", INPUT, "--vary 'cluster.bandwidth': found no KEY="),
    ("sweep --vary cluster.bandwidth=", INPUT, "found an empty value"),
    ("sweep --vary cluster.bandwidth=fast", INPUT, "--vary cluster.bandwidth: 'fast' is not a rate"),
    ("sweep --vary job.worker=1,2", INPUT, "--vary job.worker: unknown key 'worker'; did you mean 'workers'?"),
    ("sweep --vary job.workers=0,2", INPUT, "--vary job.workers: found 0; accepted: a count from 1"),
    ("sweep --vary job.workers=1:5", INPUT, "'1:5' is no range"),
    ("sweep --vary job.workers=1:5:99999", INPUT, "STEPS is '99999', not a whole number from 2 to 10000"),
    ("sweep --vary job.workers=0:5:3:log", INPUT, "a logarithmic range starts and ends above 0"),
    ("sweep --vary cluster.delay='1 us:1 Gbps:3'", INPUT, "are not two numbers of one kind"),
    (
        "sweep --vary job.dtype=fp16,bf16",
        INPUT,
        "--vary job.dtype: device v100 computes in no 'bf16' here; accepted: fp32, fp16; bf16 is on devices a100, h100",
    ),
    ("sweep --vary policies=fifo,p3", INPUT, "policies cannot be varied"),
    ("sweep --vary job.workers=1,2 --vary job.workers=3", INPUT, "--vary job.workers is given twice"),
    ("sweep --vary seed=0:9999:9999 --vary job.workers=1,2", INPUT, "points; accepted: 1 to 10000"),
    ("sweep --policy p4", INPUT, "--policy: unknown policy 'p4'"),
    ("sweep --json - --csv -", INPUT, "2 outputs are to go to -"),
    ("sweep --plot band.gif", INPUT, "its ending is '.gif'"),
    ("sweep --plot x.png --vary seed=1,2 --vary warmup=1,2 --vary loss=0,0", INPUT, "accepted: one or two in a plot"),
    (
        "sweep --scheduler here",
        INPUT,
        "--scheduler: scheduler 'here'; accepted: an address such as tcp://10.0.0.1:8786",
    ),
    ("sweep --scheduler tcp://h:1 --processes 2", INPUT, "--processes: found with --scheduler"),
    ("sweep --wait 0", INPUT, "--wait: found 0.0; accepted: a number from 0.1 to 86400.0"),
    ("sweep missing.toml", INPUT, "missing.toml: cannot be read"),
    ("sweep --csv nowhere/a.csv", INPUT, "cannot write 'nowhere/a.csv'"),
]

TUNE = [
    ("tune missing.toml", INPUT, "missing.toml: cannot be read"),
    ("tune --set job.architecture=async", INPUT, "architecture: found async, which has no iterations to plan"),
    ("tune --fix credits=none", INPUT, "unknown knob 'credits'; did you mean 'credit'?"),
    ("tune --fix sum", INPUT, "--fix sum: is a choice of policies, which scenarios do not have; accepted: sum=VALUE"),
    ("tune --fix sum=all", INPUT, "sum=all: policy sum: unknown sum 'all'; Accepted: front, hashed, none, pool"),
    ("tune --fix =4", INPUT, "--fix '=4': has no key, no value or is given twice; accepted: KEY, or KEY=VALUE, once"),
    ("tune --fix cluster.queues=0", INPUT, "--fix cluster.queues: found 0; accepted: a whole number from 1 to 32"),
    ("tune --fix sum=none --vary sum=pool", INPUT, "sum is to be varied and to be fixed; accepted: one of the two"),
    ("tune --vary slice=wide", INPUT, "slice=wide: policy 'slice': slice: 'wide' is not a size"),
    ("tune --vary job.bucket=x", INPUT, "--vary job.bucket: 'x' is not a size"),
    ("tune --vary seed=1,2", INPUT, "unknown knob 'seed'"),
    ("tune small.toml --fix sum=pool --set job.workers=1", INPUT, "nothing to start with"),
    ("tune --budget 0", INPUT, "--budget: found 0; accepted: a whole number from 1 on"),
    ("tune --within nan", INPUT, "--within: found nan; accepted: a number from 0.0 to 100.0"),
    ("tune --grain 9999999", INPUT, "grain 9999999; accepted: 1 to "),
    ("tune -o - --json -", INPUT, "2 outputs are to go to -"),
    ("tune -o nowhere/plan.json", INPUT, "cannot write 'nowhere/plan.json'"),
]

EXPLAIN = [
    ("explain --set job.architecture=async", INPUT, "architecture: found async, which has no iterations to plan"),
    ("explain --policy fifo", INPUT, "policy 'fifo' makes the same choices as fifo"),
    ("explain --policy p3,ideal", INPUT, "--policy 'p3,ideal' names 2 policies; accepted: one at a time"),
    ("explain --policy nothing", INPUT, "--policy: unknown policy 'nothing'"),
    ("explain missing.toml", INPUT, "missing.toml: cannot be read"),
    ("explain --plot a.txt", INPUT, "its ending is '.txt'"),
    ("explain --json folder", INPUT, "it is a directory"),
    ("explain --engine none", INPUT, "--engine: found 'none'"),
]

MODELS = [
    ("models show", INPUT, "NAME is missing; see `tensorexpress models show --help`"),
    ("models show vgg61", INPUT, "unknown model 'vgg61'; did you mean 'vgg19'? Accepted: alexnet"),
    ("models show vgg16 --batch 0", INPUT, "--batch: found 0; accepted: a whole number from 1 on"),
    ("models show vgg16 --batch 1e3", INPUT, "--batch: found '1e3'"),
    ("models show vgg16 --batch 99999999999999999999", INPUT, "accepted: 1 to 1,000,000"),
    ("models show vgg16 --device abacus", INPUT, "unknown device 'abacus'"),
    ("models show vgg16 --dtype fp8", INPUT, "device v100 computes in no 'fp8' here; accepted: fp32, fp16"),
    ("models devices abacus", INPUT, "found 'abacus' beyond the arguments that are accepted"),
    ("models show vgg16 --csv nowhere/a.csv", INPUT, "nowhere/a.csv"),
    ("models show vgg16 --csv -", INPUT, "--csv -: goes to no standard output; accepted: the name of a file"),
    ("models show vgg16 --csv folder", INPUT, "folder"),
    ("models list", INPUT, "unknown subcommand 'list'; Accepted: devices, show"),
    ("models show a b", INPUT, "found 'b' beyond the arguments that are accepted"),
]

HOT = [
    ("hot", INPUT, "--keys is missing; accepted: a file of lookups, or --keys and --lookups of a table"),
    ("hot missing.csv", INPUT, "cannot read 'missing.csv': No such file"),
    ("hot folder", INPUT, "cannot read 'folder': Is a directory; accepted: a CSV file with the header key,count or"),
    ("hot empty", INPUT, "empty: is empty; accepted: a CSV file with the header key,count or batch,key"),
    ("hot binary", INPUT, "binary:1: header is "),
    (
        "hot layers.csv",
        INPUT,
        "layers.csv:1: header is 'layer_index,numel,forward_ns,backward_ns'; accepted: ",
    ),
    ("hot negative.csv --lookups 5", INPUT, "negative.csv:3: count is '-4'; accepted: a whole number from 0 on"),
    ("hot twice.csv --lookups 5", INPUT, "twice.csv:4: key 7 stands here again; accepted: every key once"),
    ("hot arabic.csv", INPUT, "arabic.csv:2: byte 0xd9 is no part of a number"),
    ("hot header.csv", INPUT, "header.csv:2: no row after the header; accepted: a row for every batch"),
    ("hot counts.csv", INPUT, "--lookups is missing: 'counts.csv' has counts and no batches"),
    ("hot batches.csv --lookups 9", INPUT, "--lookups 9: found beside batches in 'batches.csv', which say it"),
    ("hot batches.csv --keys 9", INPUT, "--keys 9: found beside 'batches.csv'; accepted: a file, or a model"),
    ("hot batches.csv --skew 1.5", INPUT, "--skew 1.5: found beside 'batches.csv'"),
    ("hot batches.csv counts.csv", INPUT, "found 'counts.csv' beyond the arguments that are accepted"),
    ("hot --keys 9", INPUT, "--lookups is missing; accepted: a file of lookups"),
    ("hot --keys 0 --lookups 9", INPUT, "--keys: found 0; accepted: a whole number from 1 to 1000000000000"),
    ("hot --keys 9 --lookups -1", INPUT, "--lookups: found -1; accepted: a whole number from 1 to"),
    ("hot --keys 9 --lookups 9 --skew nan", INPUT, "--skew: found nan; accepted: a number from 0 to 10"),
    ("hot --keys 9 --lookups 9 --skew 11", INPUT, "--skew: found 11"),
    ("hot --keys 9 --lookups 9 -o keys.csv", INPUT, "--output: found without a file of lookups; accepted: with one"),
    ("hot batches.csv --width 0", INPUT, "--width: found 0; accepted: a whole number from 1 to 1048576"),
    ("hot batches.csv --workers 0", INPUT, "--workers: found 0; accepted: a whole number from 1"),
    ("hot batches.csv --servers none", INPUT, "--servers: found 'none'; accepted: a whole number from 1"),
    ("hot batches.csv --mtu 9", INPUT, "--mtu: found 9; accepted: a whole number from 576 to 65535"),
    ("hot batches.csv --memory much", INPUT, "--memory: 'much' is not a size"),
    ("hot batches.csv --memory '1 KB'", INPUT, "--memory: found 1 KB; accepted: 2112 B or more, a slot of 256 values"),
    ("hot batches.csv --memory '-1 MB'", INPUT, "--memory: '-1 MB' is negative"),
    ("hot batches.csv --plot hot.gif", INPUT, "its ending is '.gif'; accepted: .png, .svg, .pdf"),
    ("hot batches.csv --plot -", INPUT, "--plot -: goes to no standard output"),
    ("hot batches.csv --json - -o -", INPUT, "2 outputs are to go to - (standard output)"),
    ("hot batches.csv --json nowhere/a.json", INPUT, "cannot write 'nowhere/a.json'"),
    ("hot batches.csv -o folder", INPUT, "cannot write 'folder': it is a directory"),
]

PLAN = [
    ("plan --set job.architecture=async", INPUT, "architecture: found async, which has no iterations to plan"),
    ("plan --policy switchml --set cluster.switch_memory='2 KB'", INPUT, "room for 0 slots of 2112 bytes, and 1 pool"),
    ("plan --set cluster.switch_memory=-1", INPUT, "-1 is negative; a size is zero or more"),
    ("plan --dscp 99", INPUT, "--dscp"),
    ("plan --dscp a,b", INPUT, "--dscp 'a,b'; accepted: whole numbers"),
    ("plan missing.toml", INPUT, "missing.toml: cannot be read"),
    ("plan --policy fifo,p3", INPUT, "--policy 'fifo,p3' names 2 policies"),
    ("plan --policy ''", INPUT, "--policy: unknown policy ''"),
    ("plan -o folder", INPUT, "cannot write 'folder': it is a directory"),
    ("plan -o nowhere/plan.json", INPUT, "cannot write 'nowhere/plan.json'"),
    ("plan --set cluster.queues=99", INPUT, "--set cluster.queues: found 99; accepted: a whole number from 1 to 32"),
    ("plan --set name='a\x07b'", INPUT, "--set name: found"),
    ("plan --engine fast", INPUT, "unknown option '--engine'"),
    ("plan --set job.architecture=mesh", INPUT, "unknown architecture 'mesh'"),
    ("plan --set job.prefetch=many", INPUT, "job.prefetch: found 'many'; accepted: a whole number from 0 to 1000"),
    ("plan --set job.bucket=-1", INPUT, "job.bucket: -1 is negative; a size is zero or more"),
    ("plan --set job.architecture=tree --set job.forward_only=true", INPUT, "found true with architecture tree"),
    ("plan --set job.servers=0", INPUT, "found 0 with architecture ps; accepted: 1 or more"),
]

SWITCH = [
    ("switch --queues 0", INPUT, "--queues: found 0; accepted: a whole number from 1 to 8"),
    ("switch --memory '511 MiB'", INPUT, "--memory '511 MiB' has no room for a switch; accepted: 512 MiB or more"),
    ("switch --queues x", INPUT, "--queues: found 'x'"),
    ("switch --discipline lifo", INPUT, "--discipline: found 'lifo'; accepted:"),
    ("switch --device-id 0", INPUT, "--device-id: found 0"),
    ("switch --device-id 99999999999999999999", INPUT, "--device-id: found 99999999999999999999"),
    ("switch --port 0", INPUT, "port '0'; accepted:"),
    ("switch --port x@lo", INPUT, "port 'x@lo'"),
    ("switch --port 511@lo", INPUT, "accepted: 0 to 510"),
    ("switch --port 0@no-such-device0", INPUT, "no-such-device0"),
    ("switch --port 0@-batch", INPUT, "-batch"),
    ("switch --port 0@udp:127.0.0.1:1", INPUT, "port '0@udp:127.0.0.1:1'"),
    ("switch --port 0@udp:127.0.0.1:99999-127.0.0.1:2", INPUT, "names UDP port 99999; accepted: 1 to 65535"),
    ("switch --port 0@lo --port 0@lo", INPUT, "--port 0 is given twice"),
    ("switch --port 255@lo", INPUT, "the number of the CPU port"),
    (f"switch --rate {'9' * 5000}=5Gbps", INPUT, "--rate: "),
    (f"switch --grpc 127.0.0.1:{'9' * 5000}", INPUT, "is out of range; accepted: 0 to 65535"),
    (f"switch --port {'0' * 5000}1@lo", INPUT, "accepted: 0 to 510"),
    ("switch --rate fast", INPUT, "--rate: 'fast' is not a rate"),
    ("switch --rate 3='5 Gbps'", INPUT, "--rate 3=... is of no port"),
    ("switch --rate 0", INPUT, "--rate '0' would send nothing"),
    ("switch --no-grpc", INPUT, "--no-grpc without a program leaves a switch that forwards nothing"),
    ("switch --grpc 0.0.0.0:0", INPUT, "can be reached from other machines, and without TLS anybody there controls"),
    ("switch --grpc [::]:0", INPUT, "can be reached from other machines"),
    ("switch --grpc 127.0.0.1:99999", INPUT, "port 99999 is out of range; accepted: 0 to 65535"),
    ("switch --grpc unix:", INPUT, "names no path; accepted: unix:PATH"),
    ("switch --grpc unix:small.toml", INPUT, "a file that is no socket is there"),
    ("switch --grpc unix:nowhere/s0.sock", INPUT, "'nowhere' is no directory; make it first"),
    ("switch --lowest-share 100%", INPUT, "--lowest-share '100%'; accepted: 0% to below 100%"),
    ("switch --lowest-share 5", INPUT, "--lowest-share '5'"),
    ("switch --buffer big", INPUT, "--buffer: 'big' is not a size"),
    ("switch --faults explode=5%", INPUT, "unknown fault 'explode'"),
    ("switch --faults loss=500%", INPUT, "is not from 0% to 100%"),
    ("switch --cpu-port 600", INPUT, "--cpu-port: found 600; accepted: a whole number from 0 to 510"),
    ("switch --tls-cert missing.pem", INPUT, "TLS needs --tls-cert and --tls-key"),
    ("switch --entries small.toml", INPUT, "--p4info and --entries go with --program"),
    ("switch --program empty", INPUT, "--program needs --p4info"),
    ("switch --program missing --p4info empty", INPUT, "cannot read 'missing'"),
    ("switch --grpc 127.0.0.1:0 --program empty --p4info empty", INPUT, "is not BMv2 JSON"),
    ("switch replay", INPUT, "is missing"),
    ("switch replay empty --in 0=frames.pcap --out made", INPUT, "not JSON"),
    ("switch replay folder --in 0=frames.pcap --out made", INPUT, "cannot read 'folder': Is a directory"),
    ("switch replay empty --in frames.pcap --out made", INPUT, "--in 'frames.pcap'; accepted: PORT=FILE"),
    ("switch replay empty --in 0=a --in 0=b --out made", INPUT, "--in 0=... is given twice"),
    ("switch replay empty --in 900=frames.pcap --out made", INPUT, "accepted: PORT=FILE with a port of 0 to 510"),
    ("switch --queues 2 replay empty --out made", INPUT, "--queues is given before replay"),
    ("switch stop", INPUT, "unknown subcommand 'stop'; Accepted: replay"),
]

DEPLOY = [
    ("deploy", INPUT, "PLAN.json is missing; see `tensorexpress deploy --help`"),
    ("deploy plan.json", INPUT, "no switch is named; give --switch NAME for this user's switch, or NAME=ADDRESS"),
    ("deploy missing.json --switch s0=127.0.0.1:1", INPUT, "missing.json: cannot be read"),
    ("deploy folder --switch s0=127.0.0.1:1", INPUT, "folder: cannot be read"),
    ("deploy empty --switch s0=127.0.0.1:1", INPUT, "empty: is not JSON"),
    ("deploy binary --switch s0=127.0.0.1:1", INPUT, "binary: is not JSON"),
    ("deploy calibration.json --switch s0=127.0.0.1:1", INPUT, "format is"),
    ("deploy list.json --switch s0=127.0.0.1:1", INPUT, "list.json: "),
    ("deploy plan.json --switch s0=", INPUT, "--switch 's0='; accepted: NAME for this user's switch"),
    ("deploy plan.json --switch s0=127.0.0.1:99999", INPUT, "--switch 's0=127.0.0.1:99999'"),
    ("deploy plan.json --switch s9=127.0.0.1:1", INPUT, "unknown switch 's9'"),
    ("deploy plan.json --switch s0=127.0.0.1:1 --switch s0=127.0.0.1:2", INPUT, "--switch s0 is given twice"),
    ("deploy plan.json --switch s0=127.0.0.1:1 --device-id x", INPUT, "--device-id 'x'; accepted: a number"),
    ("deploy plan.json --switch s0=127.0.0.1:1 --device-id s1=1", INPUT, "no --switch s1; accepted: s0"),
    ("deploy plan.json --switch s0=127.0.0.1:1 --tls-ca missing.pem", INPUT, "--tls-ca 'missing.pem': cannot be read"),
    ("deploy plan.json --switch s0=127.0.0.1:1 --tls-ca binary", INPUT, "--tls-ca 'binary': is no PEM file"),
    ("deploy plan.json --switch s0=127.0.0.1:1 --limit job0", INPUT, "--limit 'job0'; accepted: JOB=RATE"),
    ("deploy plan.json --switch s0=127.0.0.1:1 --limit job0=fast", INPUT, "--limit: 'fast' is not a rate"),
    ("deploy plan.json --switch s0=127.0.0.1:1 --limit jobs='1 Gbps'", INPUT, "unknown job 'jobs'"),
    ("deploy plan.json --switch s0=127.0.0.1:1 --hosts missing.toml", INPUT, "missing.toml: cannot be read"),
    ("deploy plan.json --switch s0=127.0.0.1:1 --hosts cut.toml", INPUT, "cut.toml: is not TOML"),
    ("deploy plan.json --switch s0=127.0.0.1:1 --stay --dry-run", INPUT, "--stay goes with neither"),
    ("deploy plan.json --switch s0=127.0.0.1:1 --election-id 0", INPUT, "--election-id: found 0"),
    (
        "deploy plan.json --switch s0=127.0.0.1:1 --miss flood",
        INPUT,
        "--miss: found 'flood'; accepted: drop, controller",
    ),
    ("deploy plan.json --switch s0=127.0.0.1:1 --dev eth0", INPUT, "--dev goes with --target linux"),
    ("deploy plan.json --switch s0=127.0.0.1:1 --json nowhere/a", INPUT, "cannot write 'nowhere/a'"),
    ("deploy plan.json --target linux", INPUT, "--target linux needs an interface"),
    ("deploy plan.json --target linux --dev eth0 --switch s0=h", INPUT, "--switch goes with --target p4"),
    ("deploy plan.json --target linux --dev -batch --dry-run", INPUT, "'-batch' is no name of an interface"),
    ("deploy nan-plan.json --switch s0=127.0.0.1:1", INPUT, "nan-plan.json: jobs.0.tensors.0"),
    ("deploy line-plan.json --switch s0=127.0.0.1:1", INPUT, "accepted: a name of 1 to 200 letters"),
    ("deploy plan.json --target linux --dev a/b --dry-run", INPUT, "'a/b' is no name of an interface"),
    ("deploy plan.json --target linux --dev lo --rate fast --dry-run", INPUT, "--rate: 'fast' is not a rate"),
    ("deploy plan.json --target tofino", INPUT, "--target: found 'tofino'; accepted: p4, linux"),
    ("deploy plan.json --switch s0=127.0.0.1:1 --dry-run", MACHINE, "s0"),
]

STATUS = [
    ("status", INPUT, "no switch is named"),
    ("status --dev nosuch0", INPUT, "unknown interface 'nosuch0'"),
    ("status --dev a/b", INPUT, "'a/b' is no name of an interface"),
    ("status --dev lo --switch s0", INPUT, "--switch: found with --dev, which shows an interface of Linux"),
    ("status --switch =127.0.0.1:1", INPUT, "--switch '=127.0.0.1:1'; accepted: NAME for this user's switch"),
    ("status --switch s0=", INPUT, "--switch 's0='"),
    ("status --switch s0=127.0.0.1:0", INPUT, "--switch 's0=127.0.0.1:0'"),
    ("status --switch s0=::1", INPUT, "--switch 's0=::1'"),
    ("status --switch s0=127.0.0.1:1 --watch nan", INPUT, "--watch: found nan; accepted: a number from 0.1 to 86400"),
    ("status --switch s0=127.0.0.1:1 --watch 0", INPUT, "--watch: found 0.0"),
    ("status --switch s0=127.0.0.1:1 --watch 1 --json -", INPUT, "--watch does not go with --json"),
    ("status --switch s0=127.0.0.1:1 --plan missing.json", INPUT, "missing.json: cannot be read"),
    ("status --switch s0=127.0.0.1:1 --json folder", INPUT, "it is a directory"),
    ("status --switch s0=127.0.0.1:1 --tls-key missing.pem", INPUT, "--tls-key 'missing.pem'"),
    ("status --switch s0=127.0.0.1:1", MACHINE, "s0"),
]

RUN = [
    ("run --set job.architecture=async", INPUT, "job.model: found 102228128 bytes an update; accepted: up to 50000000"),
    ("run --set job.architecture=async --policy fifo", INPUT, "--policy: found with architecture async"),
    ("run --set job.architecture=async --wires", INPUT, "--wires: found with architecture async"),
    ("run --set job.architecture=async --engine native", INPUT, "--engine: found with architecture async"),
    (
        "run --policy switchml --target linux --scale auto",
        INPUT,
        "those of the target linux cannot; accepted: a target",
    ),
    (
        "run --policy switchml --set job.gpus_per_host=2 --scale auto",
        INPUT,
        "accepted with sum=pool: one; only predict",
    ),
    ("run missing.toml", INPUT, "missing.toml: cannot be read"),
    ("run empty.json", INPUT, "empty.json: is not JSON"),
    ("run --target tofino", INPUT, "--target: found 'tofino'; accepted: embedded, bmv2, linux"),
    ("run small.toml --scale auto --replan 10 -o runs", INPUT, "--replan goes without -o: a trace file has one plan"),
    ("run small.toml --scale auto --replan 0", INPUT, "--replan: found 0.0; accepted: a number from 0.1 to 100"),
    ("run --set job.architecture=async --replan 10", INPUT, "--replan: found with architecture async"),
    ("run small.toml --scale 0", INPUT, "--scale '0'; accepted: a whole number of 1 or more, or auto"),
    ("run small.toml --scale slow", INPUT, "--scale 'slow'"),
    ("run small.toml", INPUT, "give --scale"),
    ("run small.toml --faults loss", INPUT, "has no share, or two"),
    ("run small.toml --faults loss=lots", INPUT, "is not from 0% to 100%"),
    ("run small.toml --attempts 0", INPUT, "--attempts: found 0; accepted: a whole number from 1 on"),
    ("run small.toml --scale auto --silence soon", INPUT, "--silence: 'soon' is not a time"),
    ("run small.toml --json nowhere/a.json", INPUT, "cannot write 'nowhere/a.json'"),
    ("run small.toml --policy fifoo", INPUT, "--policy: unknown policy 'fifoo'"),
    (f"run small.toml --scale {'9' * 5000}", INPUT, "accepted: a whole number of 1 or more, or auto"),
    ("run plan.json --policy fifo", INPUT, "--policy: found with the plan plan.json, which has decided it"),
    ("run small.toml --plan missing.json", INPUT, "missing.json: cannot be read"),
    ("run small.toml --plan plan.json --set job.workers=1", INPUT, "is a plan for another scenario"),
    ("run small.toml --target linux --faults loss=5%", INPUT, "--faults, --wires and --veth are for"),
    ("run small.toml --scale auto -o small.toml", INPUT, "cannot write to 'small.toml'"),
]

CALIBRATE = [
    ("calibrate --baseline fifo=1 --set job.architecture=async", INPUT, "found async, which has no iterations"),
    ("calibrate --target bmv2", INPUT, "--target: found 'bmv2'; accepted: embedded, linux"),
    ("calibrate --set job.workers=2", INPUT, "SCENARIO.toml and --set are for --baseline"),
    ("calibrate missing.toml --baseline 'fifo=1 s'", INPUT, "missing.toml: cannot be read"),
    ("calibrate --baseline fifo", INPUT, "--baseline: found 'fifo'; accepted: a policy and its speed"),
    ("calibrate --baseline 'fifo=0 samples/s'", INPUT, "--baseline: found 'fifo=0 samples/s', an iteration of 0 ps"),
    ("calibrate --baseline 'fifo=fast'", INPUT, "--baseline: 'fast' is not a time"),
    ("calibrate --baseline 'nope=1 s'", INPUT, "--baseline: unknown policy 'nope'"),
    ("calibrate --set job.1.model=vgg16 --baseline 'fifo=1 s'", INPUT, "default has 2 jobs; accepted: the one"),
    ("calibrate --rate fast", INPUT, "--rate: 'fast' is not a rate"),
    ("calibrate --rate '1 bps'", INPUT, "--rate '1 bps'; accepted: from 10 Mbps"),
    ("calibrate --rate '900 Tbps'", INPUT, "--rate '900 Tbps'; accepted: from"),
    ("calibrate --mtu 100", INPUT, "--mtu: found 100; accepted: a whole number from 576 to 9000"),
    ("calibrate --iterations 0", INPUT, "--iterations: found 0"),
    ("calibrate --target linux --wires", INPUT, "--faults, --wires and --veth are for the target embedded"),
    ("calibrate -o folder", INPUT, "cannot write 'folder': it is a directory"),
    ("calibrate -o nowhere/c.json", INPUT, "cannot write 'nowhere/c.json'"),
    ("calibrate -o -", INPUT, "--output -: goes to no standard output"),
]

COMPARE = [
    ("compare", INPUT, "TRACE is missing"),
    ("compare missing.trace", INPUT, "missing.trace: cannot be read"),
    ("compare folder", INPUT, "folder: cannot be read"),
    ("compare empty", INPUT, "empty: is no trace"),
    ("compare binary", INPUT, "binary: is no trace"),
    ("compare cut.trace", INPUT, "cut.trace: is no trace, or only a part of one"),
    ("compare plan.json", INPUT, "plan.json: is no trace"),
    ("compare runs/fifo.trace other.trace", INPUT, "cannot be compared: the"),
    ("compare runs/fifo.trace runs/fifo.trace --calibration calibration.json", INPUT, "two traces need none"),
    ("compare runs/fifo.trace --calibration missing.json", INPUT, "missing.json: cannot be read"),
    ("compare runs/fifo.trace --calibration list.json", INPUT, "list.json: is no calibration"),
    ("compare runs/fifo.trace --plot a.jpeg", INPUT, "its ending is '.jpeg'"),
    ("compare runs/fifo.trace --json nowhere/a.json", INPUT, "cannot write 'nowhere/a.json'"),
    ("compare a b c", INPUT, "found 'c' beyond the arguments that are accepted"),
]

EXPORT = [
    ("export", INPUT, "is missing"),
    ("export plan.json", INPUT, "--format is missing; accepted: sonic, nccl, linux, chakra"),
    ("export plan.json --format juniper", INPUT, "--format: found 'juniper'; accepted: sonic, nccl, linux"),
    ("export missing.json --format sonic", INPUT, "missing.json: cannot be read"),
    ("export empty --format nccl", INPUT, "empty: is not JSON"),
    ("export plan.json --format nccl --ports Ethernet0", INPUT, "--ports goes with --format sonic only"),
    ("export plan.json --format sonic --ports Ethernet0,,Ethernet4", INPUT, "--ports 'Ethernet0,,Ethernet4'"),
    ("export plan.json --format nccl --job jobx", INPUT, "unknown job 'jobx'"),
    ("export plan.json --format nccl --job-class best", INPUT, "--job-class: found 'best'"),
    ("export plan.json --format linux --rate slow", INPUT, "--rate: 'slow' is not a rate"),
    ("export plan.json --format linux --dev 'a b'", INPUT, "'a b' is no name of an interface"),
    ("export plan.json --format chakra", INPUT, "--output -: goes to no standard output"),
    ("export plan.json --format chakra -o folder/no/place", INPUT, "folder/no/place.0.et"),
    ("export plan.json --format chakra -o a --job jobx", INPUT, "unknown job 'jobx'"),
    ("export plan.json --format sonic --job job0", INPUT, "--job goes with --format nccl or chakra only"),
    ("export plan.json --format sonic --dev eth0", INPUT, "--dev goes with --format linux only"),
    ("export plan.json --format sonic -o folder", INPUT, "it is a directory"),
]

DECODE = [
    ("decode", INPUT, "FILE is missing"),
    ("decode missing.pcap", INPUT, "cannot read 'missing.pcap': No such file"),
    ("decode folder", INPUT, "cannot read 'folder': Is a directory"),
    ("decode empty", INPUT, "empty: starts with bytes none"),
    ("decode binary", INPUT, "not with the magic number of pcap or pcapng"),
    ("decode small.toml", INPUT, "not with the magic number of pcap or pcapng"),
    ("decode frames.pcap missing.pcap", INPUT, "cannot read 'missing.pcap'"),
    ("decode frames.pcap --json folder", INPUT, "it is a directory"),
    ("decode radio.pcap", INPUT, "link type 127 at byte 20; accepted: 1 (Ethernet), 113 and 276 (Linux cooked)"),
    ("decode header.pcap", INPUT, "the file header ends at byte 20 of 24"),
    ("decode a b c", INPUT, "found 'c' beyond the arguments that are accepted"),
]

P4 = [
    ("p4 shw", INPUT, "unknown subcommand 'shw'; did you mean 'show'?"),
    ("p4 build --p4c missing", INPUT, "--p4c 'missing': is no program"),
    ("p4 build --p4c folder", INPUT, "--p4c 'folder': is no program"),
    ("p4 build --p4c /bin/true", INPUT, "does not say a version; accepted: p4c's p4c-bm2-ss"),
    ("p4 build --p4c ./garbled", INPUT, "garbled: Exec format error; accepted: p4c's p4c-bm2-ss"),
    ("p4 build -o small.toml", INPUT, "--output"),
    ("p4 build --target tofino", INPUT, "unknown option '--target'"),
]

DOCTOR = [
    ("doctor --switch s0=", INPUT, "--switch 's0='; accepted: NAME for this user's switch"),
    ("doctor --switch s0=127.0.0.1:70000", INPUT, "--switch 's0=127.0.0.1:70000'"),
    ("doctor --switch s0=127.0.0.1:1 --device-id -1", INPUT, "--device-id '-1'"),
    ("doctor --switch s0=127.0.0.1:1 --tls-cert binary", INPUT, "--tls-cert 'binary'"),
    ("doctor --json folder", INPUT, "it is a directory"),
    ("doctor --json nowhere/a.json", INPUT, "cannot write 'nowhere/a.json'"),
    ("doctor please", INPUT, "found 'please' beyond the arguments that are accepted"),
]

NO_VERB = [
    ("nope", INPUT, "unknown verb 'nope'; Accepted: calibrate"),
    ("predcit", INPUT, "unknown verb 'predcit'; did you mean 'predict'?"),
    ("--vrsion", INPUT, "unknown option '--vrsion'; did you mean '--version'"),
    ("'\x1b[2J'", INPUT, r"unknown verb '\\x1b[2J'"),
]

PLACE = [
    ("place --placement innart", INPUT, "--placement: found 'innart'; accepted: equal, load, inart, atp"),
    ("place --sums front", INPUT, "--sums: found 'front'; accepted: none, once, trees"),
    ("place --set job.architecture=ring", INPUT, "job.0.architecture: found ring; accepted for a placement: ps"),
    ("place --set cluster.switch_memory='2 KB'", INPUT, "switch s0 of host h0 cannot sum: it has no slot; accepted:"),
    (
        "place --set background.src=h0 --set background.dst=h1 --set background.rate='10 Gbps'",
        INPUT,
        "job0: background traffic leaves nothing of link h0-s0; accepted: less traffic, or a faster link",
    ),
    ("place --json folder/no/place.json", INPUT, "folder/no"),
]

PROFILE = [
    ("profile", INPUT, "FILE.py:FUNCTION is missing"),
    ("profile model.py", INPUT, "found 'model.py'; accepted: FILE.py:FUNCTION or MODULE:FUNCTION"),
    ("profile :build", INPUT, "found ':build'; accepted: FILE.py:FUNCTION or MODULE:FUNCTION"),
    ("profile missing.py:build", INPUT, "missing.py:build: there is no such file; accepted: FILE.py:FUNCTION"),
    ("profile missing.py:build --device tpu", INPUT, "--device: found 'tpu'; accepted: cpu, cuda"),
    ("profile missing.py:build --each tensor", INPUT, "--each: found 'tensor'; accepted: module, parameter"),
    ("profile missing.py:build --steps few", INPUT, "--steps: found 'few'"),
    ("profile missing.py:build -o -", INPUT, "--output -: goes to no standard output"),
    ("profile missing.py:build -o folder/no/layers.csv", INPUT, "folder/no"),
]

IMPORT = [
    ("import", INPUT, "is missing"),
    ("import missing.json", INPUT, "cannot read 'missing.json': No such file or directory; accepted: text workload"),
    ("import folder", INPUT, "cannot read 'folder': Is a directory"),
    ("import empty", INPUT, "empty: is of no format that is known here; accepted: text workload of ASTRA-sim 1"),
    ("import binary", INPUT, "binary: is of no format that is known here"),
    ("import binary --format chakra", INPUT, "binary: found a field of wire type 6; accepted: a whole Chakra"),
    ("import binary --format astra-text --unit ns", INPUT, "binary: byte 0 is not UTF-8"),
    ("import binary --format excel", INPUT, "--format: found 'excel'; accepted: astra-text, kineto, chakra"),
    ("import list.json", INPUT, "list.json: event 0 is [[1, 2]]; accepted: an object"),
    ("import empty.json --format kineto", INPUT, "empty.json: is not JSON"),
    ("import plan.json", INPUT, "plan.json: traceEvents is no list; accepted: a trace that torch.profiler exported"),
    ("import words.txt", INPUT, "words.txt: a text workload does not say what its times are in; give --unit"),
    ("import words.txt --unit h", INPUT, "--unit: found 'h'; accepted: ps, ns, us, ms"),
    ("import words.txt --unit ns", INPUT, "words.txt:3: 'conv1 -1 5' has 3 columns; accepted: 12"),
    ("import words.txt --unit ns --dtype fp8", INPUT, "--dtype: found 'fp8'; accepted: fp32, tf32, bf16, fp16"),
    ("import words.txt --unit ns -o -", INPUT, "--output -: goes to no standard output"),
    ("import words.txt --unit ns -o folder/no/layers.csv", INPUT, "folder/no"),
    ("import list.json --unit ns", INPUT, "--unit ns: list.json is a trace of PyTorch's profiler"),
    ("import words.txt other.txt", INPUT, "found 'other.txt' beyond the arguments that are accepted"),
]

REPORT = [
    ("report missing.toml", INPUT, "missing.toml"),
    ("report cut.trace", INPUT, "cut.trace: is no trace, or only a part of one"),
    ("report folder", INPUT, "folder: holds no file that ends with .trace"),
    ("report runs --set seed=2", INPUT, "--set, --policy and --vary are for scenarios, and traces have theirs inside"),
    ("report runs --calibration calibration.json", INPUT, "calibration.json"),
    ("report small.toml --vary job.worker=1,2", INPUT, "--vary job.worker: unknown key 'worker'"),
    ("report small.toml -o folder", INPUT, "cannot write 'folder': it is a directory"),
    ("report small.toml -o -", INPUT, "--output -: goes to no standard output"),
    ("report --set job.architecture=async", INPUT, "architecture: found async, which has no iterations to plan"),
]

TAG = [
    ("tag", INPUT, "tag needs --dev NAME or --pid PID, and not both"),
    ("tag --dev lo --pid 1", INPUT, "tag needs --dev NAME or --pid PID, and not both"),
    ("tag --pid 1 --cgroup /x", INPUT, "--cgroup goes with --dev"),
    ("tag --dev lo", INPUT, "an interface has packets of everybody; say which with --port, --cgroup or both"),
    ("tag --dev lo --port 5000", INPUT, "--port 5000: how urgent is not said; give --dscp, or --plan and --queue"),
    ("tag --dev lo --port 9-5 --dscp 1", INPUT, "--port 9-5: ports 9-5; accepted: 1 to 65535, the lower first"),
    ("tag --dev lo --port 99999 --dscp 1", INPUT, "--port 99999: ports 99999-99999; accepted: 1 to 65535"),
    ("tag --dev lo --port 80=77", INPUT, "--port 80=77: DSCP 77; accepted: 0 to 63"),
    ("tag --dev lo --port http", INPUT, "--port http: accepted: LOW[-HIGH], with =DSCP or =qQUEUE behind it"),
    ("tag --dev lo --port 80=q1", INPUT, "--port 80=q1: a queue is that of a plan; give --plan FILE, or a DSCP"),
    ("tag --dev lo --port 80 --queue 8 --plan plan.json", INPUT, "--queue: found queue 8; accepted: 0 to"),
    ("tag --dev lo --port 80 --queue 0 --plan missing.json", INPUT, "missing.json"),
    ("tag --dev lo --port 80 --queue 0 --dscp 4", INPUT, "--dscp and --queue both say how urgent it is"),
    ("tag --dev lo --port 80 --dscp 64", INPUT, "--dscp: found 64; accepted: a whole number from 0 to 63"),
    ("tag --dev nosuch0 --port 80 --dscp 8", INPUT, "unknown interface 'nosuch0'"),
    ("tag --dev a/b --port 80 --dscp 8", INPUT, "'a/b' is no name of an interface"),
    (
        "tag --dev lo --cgroup /no/such --dscp 8",
        INPUT,
        "cgroup '/no/such': there is none; accepted: a cgroup of version",
    ),
    ("tag --dev lo --cgroup ../../etc --dscp 8", INPUT, "cgroup '../../etc': there is none"),
    ("tag --dev lo --remove --port 80", INPUT, "--remove takes all tags of an interface away; leave out --port"),
    ("tag --dev lo --remove --dscp 8", INPUT, "--remove takes tags away; leave out --dscp"),
    ("tag --pid 4194305 --dscp 8", INPUT, "process 4194305: "),
    ("tag --pid 99999999999999999999 --dscp 8", INPUT, "process 99999999999999999999: "),
]

BY_VERB = {
    "predict": PREDICT,
    "sweep": SWEEP,
    "tune": TUNE,
    "explain": EXPLAIN,
    "models": MODELS,
    "profile": PROFILE,
    "import": IMPORT,
    "hot": HOT,
    "place": PLACE,
    "plan": PLAN,
    "switch": SWITCH,
    "deploy": DEPLOY,
    "status": STATUS,
    "tag": TAG,
    "run": RUN,
    "calibrate": CALIBRATE,
    "compare": COMPARE,
    "report": REPORT,
    "export": EXPORT,
    "decode": DECODE,
    "p4": P4,
    "doctor": DOCTOR,
}
ROWS = [row for rows in (*BY_VERB.values(), NO_VERB) for row in rows]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a file of every kind, right and wrong ones."""
    here = tmp_path_factory.mktemp("inputs")
    (here / "folder").mkdir()
    (here / "layers.csv").write_text("layer_index,numel,forward_ns,backward_ns\n0,20000,200000,400000\n")
    (here / "idle.csv").write_text("layer_index,numel,forward_ns,backward_ns\n0,20000,0,0\n")
    (here / "small.toml").write_text('policies = ["fifo"]\n[job]\ncsv = "layers.csv"\nworkers = 2\nservers = 1\n')
    (here / "counts.csv").write_text("key,count\n7,3\n8,1\n")
    (here / "batches.csv").write_text("batch,key\n0,7\n1,7\n")
    (here / "negative.csv").write_text("key,count\n7,3\n8,-4\n")
    (here / "twice.csv").write_text("key,count\n7,3\n8,1\n7,2\n")
    (here / "arabic.csv").write_text("batch,key\n0,٣\n")
    (here / "header.csv").write_text("batch,key\n")
    for name in ("empty", "empty.toml", "empty.json"):
        (here / name).touch()
    (here / "binary").write_bytes(b"\xff\x00\xfe" * 50)
    (here / "cut.toml").write_text('name = "cut"\n[cluster\n')
    (here / "nan.toml").write_text("loss = nan\n")
    (here / "escape.toml").write_text('name = "a\\u001b[2Jb"\n')
    (here / "words.txt").write_text("DATA\n1\nconv1 -1 5\n")
    (here / "list.json").write_text("[[[1, 2]]]")
    (here / "garbled").write_text("no program\n")
    (here / "garbled").chmod(0o755)
    write_pcap(here / "frames.pcap", [TimedFrame(5, bytes(60))])
    whole = (here / "frames.pcap").read_bytes()
    (here / "header.pcap").write_bytes(whole[:20])
    (here / "radio.pcap").write_bytes(whole[:20] + b"\x7f\0\0\0")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        for command in (
            "plan small.toml -o plan.json",
            "predict small.toml --save runs",
            "predict small.toml --set job.workers=1 --save others",
        ):
            assert CliRunner().invoke(main, shlex.split(command)).exit_code == 0
    plan = (here / "plan.json").read_text()
    (here / "nan-plan.json").write_text(plan.replace('"bytes": 80000', '"bytes": "NaN"'))
    (here / "line-plan.json").write_text(plan.replace('"job0"', r'"job0\nNCCL_IB_TC=0"'))
    (here / "others" / "fifo.trace").rename(here / "other.trace")
    (here / "cut.trace").write_bytes((here / "runs" / "fifo.trace").read_bytes()[:900])
    (here / "calibration.json").write_text('{"format": "another"}')
    return here


def listing(folder: Path) -> dict[str, tuple[int, int]]:
    found = {path: path.stat() for path in folder.rglob("*")}
    return {str(path): (stat.st_size, stat.st_mtime_ns) for path, stat in found.items()}


def check(said, stdout, stderr):
    assert stderr.startswith("tensorexpress: error: "), stderr
    assert stderr.count("\n") == 1, stderr
    assert stderr.rstrip("\n").isprintable(), stderr
    assert said in stderr
    assert stdout == ""


@pytest.mark.parametrize(("command", "status", "said"), ROWS, ids=[command for command, _, _ in ROWS])
def test_a_wrong_input_is_one_line_with_the_right_status_and_leaves_nothing(command, status, said, folder, monkeypatch):
    monkeypatch.chdir(folder)
    before = listing(folder)
    monkeypatch.setattr(speed, "known_bps", lambda target, load: 10**8)  # a machine is not kept busy to refuse anything
    result = CliRunner().invoke(main, shlex.split(command))
    assert result.exit_code == status, (result.output, result.exception)
    check(said, result.stdout, result.stderr)
    assert listing(folder) == before


def test_all_verbs_are_tried_with_150_inputs_or_more():
    assert set(BY_VERB) == set(VERBS)
    assert all(command.split()[0] == verb for verb, rows in BY_VERB.items() for command, _, _ in rows)
    assert max(Counter(command for command, _, _ in ROWS).values()) == 1
    assert len(ROWS) >= 150


@rest(but=2)
@pytest.mark.parametrize(
    ("command", "status", "said"),
    [PREDICT[0], SWEEP[0], DEPLOY[-1], DECODE[3], NO_VERB[0]],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_installed_command_says_the_same(command, status, said, folder):
    program = Path(sys.executable).parent / "tensorexpress"
    ran = subprocess.run([program, *shlex.split(command)], cwd=folder, capture_output=True, text=True)
    assert ran.returncode == status
    check(said, ran.stdout, ran.stderr)

#!/usr/bin/env python3
"""What `./dev bench` measures.

`plugin`: casemate-kms beside a Go plugin that does the same work (bench/peer), in one run. Both are called by kube-apiserver's own client, in two generations. Rounds alternate between the two, and a ratio is the
median of the rounds' ratios: what the machine does besides hits both. Absolute figures are this machine's only.
`coldstart`, `outage`, `idle`, `soak` and `census` stand in key_services.py.
"""
import argparse, contextlib, json, os, pathlib, platform, resource, signal, statistics, subprocess, sys, tempfile, time

import key_services
from budget import Budget, shown, verdict

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/reference/benchmarks.md"

METHODS = ["status", "encrypt", "decrypt"]
IN_FLIGHT = [1, 50, 500]
GENERATIONS = ["37", "31"]
PREPARED = 32  # Encrypts that kms-client does for its Decrypts, before the warm-up
MIB = 1024 * 1024
TICK = os.sysconf("SC_CLK_TCK")


def latency_budget(in_flight, rank):
    if in_flight == 1:
        return Budget(most=0.9)
    return Budget(most=1.1) if rank == "p99" else None


def cpu_budget(in_flight):
    return Budget(most=0.7 if in_flight == 1 else 0.9)


IDLE, LOADED, START, SIZE = Budget(most=8), Budget(most=16), Budget(most=30), Budget(most=12)


def main():
    options = parse()
    if options.what == "size":
        size = (options.programs / "dist/casemate-kms").stat().st_size / MIB
        print(f"casemate-kms {size:.2f} MiB, budget {SIZE} MiB: {verdict(SIZE, size)}")
        return 0 if SIZE.met(size) else 1
    if options.what in key_services.PARTS:
        return key_services.main(options)
    say(f"load average {os.getloadavg()[0]:.2f} at the start: what else runs here is measured too")
    with tempfile.TemporaryDirectory(dir=options.programs) as folder:
        measured = measure(options, pathlib.Path(folder))
    report = markdown(measured)
    print(json.dumps(measured, indent=2) if options.output == "json" else report)
    if options.write:
        key_services.put(PAGE, "plugin", report)
    return 0


def parse():
    parser = argparse.ArgumentParser(prog="./dev bench")
    parser.add_argument("what", choices=["plugin", "size", *key_services.PARTS])
    parser.add_argument("--programs", type=pathlib.Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=5, help="of each pair; default 5; plugin, outage and census")
    parser.add_argument("--calls", type=int, default=30_000,
                        help="of one round at 1 in flight; five times as many above; plugin and outage")
    parser.add_argument("--memory-calls", type=int, default=1_000_000, help="before resident memory is taken")
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--keks", type=int, default=200, help="local KEKs at most; coldstart")
    parser.add_argument("--objects", type=int, default=1_000_000, help="census")
    parser.add_argument("--minutes", type=int, default=20, help="how long; idle and soak")
    parser.add_argument("--key-service", choices=["openbao", "softhsm"], default="openbao", help="of soak")
    parser.add_argument("--output", choices=["table", "json"], default="table")
    parser.add_argument("--write", action="store_true", help=f"also to {PAGE.relative_to(ROOT)}")
    return parser.parse_args()


def measure(options, folder):
    lab = options.programs / "bin/casemate-lab"
    tools = subprocess.run([lab, "tools", "--bench"], stdout=subprocess.PIPE, text=True, check=True).stdout
    paths = dict(line.split("\t") for line in tools.splitlines())
    tool = {name.split(" ")[0]: pathlib.Path(path) for name, path in paths.items()}
    clients = {generation: tool[f"kms-client-{generation}"] for generation in GENERATIONS}
    ours = Ours(folder / "ours", options.programs)
    peer = Peer(folder / "peer", tool["kms-peer"])
    both = {"ours": ours, "peer": peer}

    measured = {
        "machine": machine(), "load": os.getloadavg()[0], "rounds": options.rounds, "calls": options.calls,
        "memory_calls": options.memory_calls, "starts": options.starts,
        "clients": {g: output([client, "version"]) for g, client in clients.items()},
        "size_mib": {name: subject.program.stat().st_size / MIB for name, subject in both.items()},
        "start": {}, "memory": {}, "cells": [],
    }
    for name, subject in both.items():
        say(f"{name}: {options.starts} starts")
        measured["start"][name] = json.loads(output([
            clients["37"], "starts", "--endpoint", subject.endpoint, "--count", str(options.starts),
            "--", *subject.command]))
    for name, subject in both.items():
        say(f"{name}: memory, {options.memory_calls} calls at 500 in flight")
        with subject.running(clients["37"]) as pid:
            time.sleep(2)
            idle = resident(pid)
            called = calls(clients["37"], subject, 500, options.memory_calls, pid)
            measured["memory"][name] = {"idle": idle, "after": resident(pid), "run": called}
    with ours.running(clients["37"]) as our_pid, peer.running(clients["37"]) as peer_pid:
        pids = {"ours": our_pid, "peer": peer_pid}
        for round in range(options.rounds):
            for generation, client in clients.items():
                for in_flight in IN_FLIGHT:
                    cell = {"round": round, "client": generation, "in_flight": in_flight}
                    for name in ["ours", "peer"] if round % 2 == 0 else ["peer", "ours"]:
                        count = options.calls * (1 if in_flight == 1 else 5)
                        cell[name] = calls(client, both[name], in_flight, count, pids[name])
                    measured["cells"].append(cell)
                    say(f"round {round + 1}, client {generation}, {in_flight} in flight: CPU a call "
                        + ", ".join(f"{name} {cell[name]['cpu_us']:.1f} µs" for name in both))
    measured["load_after"] = os.getloadavg()[0]
    return measured


class Plugin:
    """One of the two, with what it needs in its own folder."""
    def __init__(self, folder, program, arguments):
        self.folder, self.program = folder, program
        self.endpoint = f"unix://{folder}/kms.sock"
        self.command = [str(word) for word in (program, *arguments)]

    @contextlib.contextmanager
    def running(self, client):
        with open(self.folder / "log", "a") as log:
            child = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "--", *self.command],
                                     stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            self.await_answer(client, child)
            yield child.pid
        finally:
            child.send_signal(signal.SIGTERM)
            child.wait()

    def await_answer(self, client, child):
        for _ in range(100):
            asked = subprocess.run([client, "calls", "--endpoint", self.endpoint, "--count", "1", "--mix", "status",
                                    "--timeout", "1s"], capture_output=True)
            if asked.returncode == 0:
                return
            if child.poll() is not None:
                break
            time.sleep(0.1)
        sys.exit(f"{self.program.name} does not answer:\n{(self.folder / 'log').read_text()[-2000:]}")


class Ours(Plugin):
    def __init__(self, folder, programs):
        folder.mkdir()
        super().__init__(folder, programs / "dist/casemate-kms", ["serve", "--config", folder / "config.yaml"])
        casemate, key = programs / "bin/casemate", folder / "root.key"
        output([casemate, "key", "new", "--file", key])
        listed = json.loads(output([casemate, "key", "list", "--file", key, "--output", "json"]))
        (folder / "config.yaml").write_text(json.dumps({  # a JSON text is a YAML text
            "apiVersion": "casemate.dev/v1alpha1", "kind": "KmsConfiguration", "clusterId": "bench",
            "stateDirectory": str(folder / "state"),
            "providers": [{"name": "bench", "endpoint": self.endpoint,
                           "rootKeys": [{"name": "main", "file": {"path": str(key), "id": listed["id"]}}]}]}))


class Peer(Plugin):
    def __init__(self, folder, program):
        folder.mkdir()
        super().__init__(folder, program, ["--listen", folder / "kms.sock", "--key-file", folder / "root.key"])


def calls(client, subject, in_flight, count, pid):
    warm_up = max(count // 20, in_flight)
    before, client_before = cpu(pid), client_cpu()
    answer = json.loads(output([
        client, "calls", "--endpoint", subject.endpoint, "--count", str(count), "--concurrency", str(in_flight),
        "--mix", ",".join(METHODS), "--warm-up", str(warm_up)]))
    if answer["ciphertext_bytes"] != 93 or not 200 < answer["annotation_bytes"] < 240:
        sys.exit(f"{subject.program.name} sends other sizes than the format has: it does other work; {answer}")
    all_calls = PREPARED + warm_up + count
    answer["cpu_us"] = (cpu(pid) - before) / all_calls * 1e6
    answer["client_cpu_us"] = (client_cpu() - client_before) / all_calls * 1e6
    return answer


def cpu(pid):
    """Seconds in user mode and in the kernel."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def client_cpu():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def resident(pid):
    """In MiB: all, the highest ever, and of it what is the process's own and no page of a program file."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {name: int(fields[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM", "RssAnon")}


def machine():
    info = pathlib.Path("/proc/cpuinfo").read_text()
    model = next((line.split(": ")[1] for line in info.splitlines() if line.startswith("model name")), platform.machine())
    return f"{os.cpu_count()} cores, {model}, Linux {platform.release()}"


def markdown(measured):
    lines = [f"{measured['machine']}; load average {measured['load']:.1f} before the run, "
             f"{measured['load_after']:.1f} after, the run itself included.", ""]
    for generation, version in measured["clients"].items():
        lines += call_table(measured, generation, version)
    lines += process_table(measured)
    return "\n".join(lines) + "\n"


def call_table(measured, generation, version):
    count = f"{measured['calls']:,}", f"{measured['calls'] * 5:,}"
    lines = [f"### Calls, client of kube-apiserver {version}", "",
             f"Rounds: {measured['rounds']}. Calls in each: {count[0]} at 1 in flight, {count[1]} above; "
             "Status, Encrypt and Decrypt in turn.", "",
             "| in flight | | casemate-kms | Go | ratio | budget | |", "|---:|---|---:|---:|---:|---|---|"]
    for in_flight in IN_FLIGHT:
        cells = [c for c in measured["cells"] if c["client"] == generation and c["in_flight"] == in_flight]

        def row(what, unit, budget, figure):
            pairs = [(figure(c["ours"]), figure(c["peer"])) for c in cells]
            ratio = statistics.median(ours / peer for ours, peer in pairs)
            ours, peer = (statistics.median(column) for column in zip(*pairs))
            lines.append(f"| {in_flight} | {what} | {shown(ours, unit)} | {shown(peer, unit)} | {ratio:.2f} | "
                         f"{budget or ''} | {verdict(budget, ratio)} |")

        for method in METHODS:
            for rank in "p50", "p99":
                row(f"{method.capitalize()} {rank}", "µs", latency_budget(in_flight, rank),
                    lambda run: run["methods"][method][f"{rank}_us"])
        row("throughput", "/s", None if in_flight == 1 else Budget(least=1), lambda run: run["calls_per_s"])
        row("CPU a call", "µs", cpu_budget(in_flight), lambda run: run["cpu_us"])
        row("the client's own CPU a call", "µs", None, lambda run: run["client_cpu_us"])
    return [*lines, ""]


def process_table(measured):
    lines = ["### The process", "", "| | casemate-kms | Go | ratio | budget | |", "|---|---:|---:|---:|---|---|"]

    def row(what, unit, budget, ours, peer):
        limit = f"{budget} {unit}" if budget else ""
        lines.append(f"| {what} | {shown(ours, unit)} | {shown(peer, unit)} | {ours / peer:.2f} | {limit} | "
                     f"{verdict(budget, ours)} |")

    def memory(what, budget, when, field):
        row(what, "MiB", budget, *(measured["memory"][name][when][field] for name in ("ours", "peer")))

    row(f"start to the first ok, median of {measured['starts']}", "ms", START,
        *(measured["start"][name]["p50_ms"] for name in ("ours", "peer")))
    after = f"after {measured['memory_calls']:,} calls at 500 in flight"
    memory("resident when idle", IDLE, "idle", "VmRSS")
    memory("of it no pages of program files", None, "idle", "RssAnon")
    memory(f"resident {after}", LOADED, "after", "VmRSS")
    memory("of it no pages of program files", None, "after", "RssAnon")
    memory("at its highest", None, "after", "VmHWM")
    row("program, stripped", "MiB", SIZE, measured["size_mib"]["ours"], measured["size_mib"]["peer"])
    return lines


def output(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout.strip()


def say(text):
    print(f"── {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

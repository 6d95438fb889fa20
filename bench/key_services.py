"""What a key service costs and what it does to callers: `casemate-lab bench` measures, this makes tables of it."""
import json, os, pathlib, statistics, subprocess, sys

from budget import Budget, shown, verdict

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs/reference/benchmarks.md"
PLACES = 32  # stored calls at a time for one root key, whatever waits
SLACK_KIB, KIB_A_KEK = 128, 2  # of pages that an allocator has not given back; of an opened local KEK with its record
AN_HOUR, HANGING = Budget(most=60), Budget(most=2)
RATE, A_KEY = Budget(least=100_000), Budget(most=40)
LIVE, FOREGROUND, RECOVERED = Budget(most=1.2), Budget(most=1.1), Budget(least=20_000)


def main(options):
    say(f"load average {os.getloadavg()[0]:.2f} at the start: what else runs here is measured too")
    before = os.getloadavg()[0]
    lab = "dist" if options.what == "census" else "bin"  # of census it reads what the program reads, to be compared with it
    command = [options.programs / lab / "casemate-lab", "bench", options.what]
    for name in OPTIONS[options.what]:
        command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True,
                          env={**os.environ, "CASEMATE_BIN": str(options.programs / "dist")})
    if done.returncode:
        return done.returncode
    measured = {**json.loads(done.stdout), "load": before, "load_after": os.getloadavg()[0]}
    part = f"soak-{options.key_service}" if options.what == "soak" else options.what
    load = f"Load average {before:.1f} before the run, {measured['load_after']:.1f} after, the run itself included."
    report = "\n".join([*PARTS[options.what](measured), "", load]) + "\n"
    print(json.dumps(measured, indent=2) if options.output == "json" else report)
    if options.write:
        put(PAGE, part, report)
    return 0


def put(page, part, report):
    """In its place on the page, which is between two comments."""
    begin, end = f"<!-- ./dev bench {part} --write -->\n", f"<!-- end of {part} -->"
    text = page.read_text()
    if begin not in text or end not in text:
        sys.exit(f"{page} has no place for {part}: {begin.strip()} … {end}")
    page.write_text(text.partition(begin)[0] + begin + "\n" + report + "\n" + end + text.partition(end)[2])


def coldstart(measured):
    lines = [f"{measured['sources']} DEK sources under each local KEK. *Bound*: as many rounds of calls as are needed "
             f"if min(in flight, {PLACES}) go at a time, each of them as long as the delay.", "",
             "| local KEKs | delay | in flight | Decrypts | unwraps | | others meanwhile | without local KEKs | took | bound | "
             "ratio | start to ok | calls for it |",
             "|---:|---:|---:|---:|---:|---|---:|---:|---:|---:|---:|---:|---:|"]
    for cell in measured["cells"]:
        keks, delay, reading = cell["keks"], cell["delay_ms"] / 1000, cell["reading"]
        rounds = -(-keks // min(cell["in_flight"], PLACES))
        bound = rounds * delay
        ratio = f"{cell['wall_s'] / bound:.2f}" if bound else ""
        met = verdict(Budget(most=keks), reading["unwrap"])
        lines.append(
            f"| {keks} | {cell['delay_ms']} ms | {cell['in_flight']} | {cell['decrypts']:,} | {reading['unwrap']} | {met} | "
            f"{reading['all'] - reading['unwrap']} | {cell['decrypts']:,} | {cell['wall_s']:.2f} s | {bound:.2f} s | {ratio} | "
            f"{cell['ready_s']:.2f} s | {cell['starting']['all']} |")
    return lines


def outage(measured):
    rounds = measured["rounds"]
    lines = [f"Rounds: {len(rounds)}. {rounds[0]['well']['count']:,} calls a part, one at a time: Status, Encrypt and Decrypt in "
             f"turn, while {measured['readers']} others read what nobody has opened yet, each "
             f"{measured['read_every_ms']} ms after it was answered.", "",
             "| | | answers | hangs | ratio | budget | | hangs, breaker open | ratio |",
             "|---|---|---:|---:|---:|---|---|---:|---:|"]
    for method in "status", "encrypt", "decrypt":
        for rank in "p50", "p99":
            def figure(part):
                return part["methods"][method][f"{rank}_us"]
            pairs = [(figure(r["well"]), figure(r["hangs"])) for r in rounds]
            ratio = statistics.median(hangs / well for well, hangs in pairs)
            well, hangs = (statistics.median(column) for column in zip(*pairs))
            known = rounds[-1]["found_out"]
            budget = HANGING if (method, rank) == ("status", "p99") else None
            lines.append(f"| {method.capitalize()} | {rank} | {shown(well, 'µs')} | {shown(hangs, 'µs')} | {ratio:.2f} | "
                         f"{budget or ''} | {verdict(budget, ratio)} | {shown(figure(known), 'µs')} | "
                         f"{figure(known) / figure(rounds[-1]['well']):.2f} |")
    after = rounds[-1]["found_out"]["found_out_after_s"]
    return [*lines, "", f"The breaker opened {after:.0f} s after the part before: the plugin itself asks each 200 s."]


def idle(measured):
    lines = [f"{measured['minutes']} minutes, a plugin for each row.", "",
             "| tokens last | observe | wrap | unwrap | token | all | an hour | budget | | before, to start |",
             "|---|---:|---:|---:|---:|---:|---:|---|---|---:|"]
    for plugin in measured["plugins"]:
        calls = plugin["idle"]
        hour = calls["all"] * 60 / measured["minutes"]
        lines.append(f"| {plugin['token']} | {calls['observe']} | {calls['wrap']} | {calls['unwrap']} | {calls['token']} | "
                     f"{calls['all']} | {hour:.0f} | {AN_HOUR} | {verdict(AN_HOUR, hour)} | {plugin['starting']['all']} |")
    return lines


def soak(measured):
    """The second quarter beside the last one: before, caches and allocators fill."""
    samples = measured["samples"]
    quarter = len(samples) // 4
    early, late = samples[quarter:2 * quarter], samples[3 * quarter:]
    lines = [f"{measured['minutes']} minutes, {len(samples)} samples, {samples[-1]['served']:,} calls; "
             f"{samples[-1]['opened_keks']:.0f} local KEKs of others are held at the end.", "",
             "| | second quarter | last quarter | |", "|---|---:|---:|---|"]

    def row(what, value, unit=""):
        before, after = ([value(sample) for sample in part] for part in (early, late))
        spans = [f"{min(part):,}…{max(part):,}{unit}" if min(part) != max(part) else f"{max(part):,}{unit}" for part in (before, after)]
        grown = max(after) - max(before)
        filled = late[-1]["opened_keks"] - early[-1]["opened_keks"]
        if grown <= (SLACK_KIB if unit else 0):
            said = "no growth"
        elif unit and grown <= SLACK_KIB + KIB_A_KEK * filled:
            said = f"{grown / filled:.1f} KiB for each local KEK that came to those held"
        else:
            said = "**grows**"
        lines.append(f"| {what} | {spans[0]} | {spans[1]} | {said} |")

    def of(role, field):
        return lambda sample: sum(p[field] for name, p in sample["processes"].items() if name.startswith(role))

    row("processes", lambda sample: len(sample["processes"]))
    ids = [sorted(samples[at]["processes"]) for at in (quarter, -1)]
    lines.append(f"| the same processes | {len(ids[0])} | {len(set(ids[0]) & set(ids[1]))} | "
                 f"{'none was restarted' if ids[0] == ids[1] else '**restarted**'} |")
    for role in sorted({name.split(" ")[0] for sample in samples for name in sample["processes"]}):
        row(f"{role}: resident", of(role, "resident_kib"), " KiB")
        row(f"{role}: of it no pages of program files", of(role, "own_kib"), " KiB")
        row(f"{role}: descriptors", of(role, "descriptors"))
        row(f"{role}: threads", of(role, "threads"))
    if "tokens" in samples[0]:
        row("tokens that the service holds", lambda sample: sample["tokens"])
        lines.append(f"| connections to it, since the start | {early[-1]['proxied_connections']} | "
                     f"{late[-1]['proxied_connections']} | |")
        lines.append(f"| calls to it for tokens, since the start | {early[-1]['calls']['token']} | {late[-1]['calls']['token']} | |")
    return lines


def census(measured):
    objects, base = measured["objects"], measured["base"]
    lines = [f"{objects:,} objects of {measured['object_bytes']:,} bytes under KMS v2, a snapshot of {measured['bytes'] / 2**20:,.0f} "
             "MiB. The whole command, with the checksum of the file; the file is in the page cache.", "",
             "| round | took | objects a second | budget | | resident at its highest | bytes a key | budget | |",
             "|---:|---:|---:|---|---|---:|---:|---|---|"]
    for number, taken in enumerate(measured["snapshot"], 1):
        rate = objects / taken["wall_s"]
        each = (taken["highest_kib"] - base["taken"]["highest_kib"]) * 1024 / (objects - base["objects"])
        lines.append(f"| {number} | {taken['wall_s']:.2f} s | {rate:,.0f} | {RATE} | {verdict(RATE, rate)} | "
                     f"{taken['highest_kib'] / 1024:.1f} MiB | {each:.1f} | {A_KEY} | {verdict(A_KEY, each)} |")
    lines += ["", f"*Bytes a key*: what it takes more than for {base['objects']:,} objects, for each object more."]
    return [*lines, *census_live(measured), *census_foreground(measured["foreground"]), *census_recovery(measured)]


def census_live(measured):
    live, objects = measured["live"], measured["objects"]
    lines = ["", "#### A running etcd", "",
             f"The same objects in the etcd that the snapshot is of, after a compaction: `casemate census etcd --rate 0`, the whole "
             f"command, beside a loop that asks for page after page at one revision ({live['keys_a_page']} keys in each, 1 MiB as the "
             "census has them), each by the exact range of its keys, and drops what comes.", "",
             "| round | bare | census | objects a second | ratio | resident at its highest |", "|---:|---:|---:|---:|---:|---:|"]
    ratios = []
    for number, taken in enumerate(live["rounds"], 1):
        bare, census = taken["bare"]["wall_s"], taken["census"]["wall_s"]
        ratios.append(census / bare)
        lines.append(f"| {number} | {bare:.2f} s | {census:.2f} s | {objects / census:,.0f} | {ratios[-1]:.2f} | "
                     f"{taken['census']['highest_kib'] / 1024:.1f} MiB |")
    ratio = statistics.median(ratios)
    return [*lines, "", f"Median of the ratios: {ratio:.2f}, budget {LIVE}: {verdict(LIVE, ratio)}."]


def census_foreground(rounds):
    lines = ["", "#### Beside it, a client of an API server", "",
             f"{len(rounds)} pairs of rounds, with a census at its default rate and without, in turn: a kube-apiserver on the same etcd "
             "encrypts by `casemate-kms`; its client makes a Secret, reads it and replaces it, one call at a time.", "",
             "| | idle | beside a census | ratio | budget | |", "|---|---:|---:|---:|---|---|"]

    def row(what, unit, budget, field):
        pairs = [(taken["idle"][field], taken["census"][field]) for taken in rounds]
        ratio = statistics.median(census / idle for idle, census in pairs)
        idle, census = (statistics.median(column) for column in zip(*pairs))
        lines.append(f"| {what} | {shown(idle, unit)} | {shown(census, unit)} | {ratio:.2f} | {budget or ''} | {verdict(budget, ratio)} |")

    row("p50", "µs", None, "p50_us")
    row("p99", "µs", FOREGROUND, "p99_us")
    row("calls in a round", "", None, "calls")
    return lines


def census_recovery(measured):
    recovery = measured["recovery"]
    lines = ["", "#### Recovery", "",
             f"{recovery['sources']} DEK sources under {recovery['keks']} local KEKs, whose root key is in OpenBao. The whole command: "
             "`casemate recover drill` opens all objects; `casemate recover snapshot` writes their manifests, too, of a snapshot of "
             f"{recovery['written_objects']:,} and to memory (`/dev/shm`): a disk takes as long as it takes. OpenBao was asked {recovery['keks']} times to unwrap, by the count of a proxy: each "
             "local KEK once, or the benchmark fails.", "",
             "| round | drill | objects a second | budget | | snapshot | objects a second | budget | |",
             "|---:|---:|---:|---|---|---:|---:|---|---|"]
    for number, (drill, written) in enumerate(zip(recovery["drills"], recovery["written"]), 1):
        row = [str(number)]
        for taken, objects in (drill, measured["objects"]), (written, recovery["written_objects"]):
            rate = objects / taken["wall_s"]
            row += [f"{taken['wall_s']:.2f} s", f"{rate:,.0f}", str(RECOVERED), verdict(RECOVERED, rate)]
        lines.append(f"| {' | '.join(row)} |")
    return lines


PARTS = {"coldstart": coldstart, "outage": outage, "idle": idle, "soak": soak, "census": census}
OPTIONS = {"coldstart": ["keks"], "outage": ["rounds", "calls"], "idle": ["minutes"], "soak": ["minutes", "key_service"],
           "census": ["rounds", "objects"]}


def say(text):
    print(f"── {text}", file=sys.stderr, flush=True)

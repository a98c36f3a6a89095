#!/usr/bin/env python3
r"""Runs one frameload command several times against one or more servers, alternating between them, and
prints median and spread.  Alternating means that slow drifts of the machine hit every server alike.

  compare.py [--runs 5] [--raw FILE] [--bin ./frameload] [--quiet 0.1 --tries 30] \
             --server NAME=PORT[:PID] ... -- MODE OPTIONS

With --quiet F, a round in which other processes used more than F cores during any of its runs is repeated, at
most --tries rounds in all; the rounds with the least foreign load are then reported, with that load.

Example: compare.py --server java=9876:4711 --server ours=9877:4712 -- route -c 16 -d 1 --topics 100
Only the standard library is used.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

FIELDS = (
    ("ops_s", "ops/s"),
    ("msgs_s", "msg/s"),
    ("lat_us.p50", "p50 us"),
    ("lat_us.p90", "p90 us"),
    ("lat_us.p99", "p99 us"),
    ("lat_us.p999", "p99.9 us"),
    ("lat_us.max", "max us"),
    ("server_us_per_op", "server us/op"),
    ("server_us_per_msg", "server us/msg"),
    ("server_rss_mb", "server MB"),
    ("payload_mb_s", "payload MB/s"),
    ("foreign_cores", "foreign cores"),
)


def field(result, path):
    for key in path.split("."):
        result = result.get(key) if isinstance(result, dict) else None
    return result


def trouble(result):
    """What makes a run invalid, or an empty string."""
    parts = [f"code {c} x{e['n']} {e['remark']}" for c, e in result.get("errors", {}).items()]
    parts += [f"{k}={result[k]}" for k in ("mismatch", "bad", "closed", "unanswered") if result.get(k)]
    return "; ".join(parts)


TICK = os.sysconf("SC_CLK_TCK")


def busy():
    """CPU seconds used by everything since boot, and by our children."""
    with open("/proc/stat") as f:
        cpu = [int(x) for x in f.readline().split()[1:9]]
    kids = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (sum(cpu) - cpu[3] - cpu[4]) / TICK, kids.ru_utime + kids.ru_stime


def server_cpu(pid):
    if not pid:
        return 0.0
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def run_once(line, pid):
    """One run: its result with the load of other processes, in cores, added."""
    all0, kids0 = busy()
    srv0, t0 = server_cpu(pid), time.monotonic()
    out = subprocess.run(line, stdout=subprocess.PIPE, text=True).stdout.strip().splitlines()
    seconds = time.monotonic() - t0
    all1, kids1 = busy()
    if not out:
        return None
    result = json.loads(out[-1])
    foreign = (all1 - all0) - (kids1 - kids0) - (server_cpu(pid) - srv0)
    result["foreign_cores"] = round(max(foreign, 0) / seconds, 3)
    return result


def main():
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--runs", type=int, default=5)
    ap.add_argument("--raw", help="append every result line to this file")
    ap.add_argument("--bin", default="./frameload")
    ap.add_argument("--server", action="append", required=True)
    ap.add_argument("--title", default="")
    ap.add_argument("--quiet", type=float, help="repeat rounds with more foreign load than this many cores")
    ap.add_argument("--tries", type=int, default=30)
    args = ap.parse_args(sys.argv[1:split])
    command = sys.argv[split + 1 :]
    servers = []
    for text in args.server:
        name, _, where = text.partition("=")
        port, _, pid = where.partition(":")
        servers.append((name, port, pid))
    rounds, quiet = [], 0
    while quiet < args.runs and len(rounds) < max(args.tries, args.runs):
        this = {}
        for name, port, pid in servers if len(rounds) % 2 == 0 else servers[::-1]:
            line = [args.bin, *command, "--port", port, "--label", f"{args.title}/{name}"]
            result = run_once(line + (["--pid", pid] if pid else []), pid)
            if result is None:
                print(f"{name}: no result", file=sys.stderr)
                continue
            this[name] = result
            if args.raw:
                with open(args.raw, "a") as f:
                    f.write(json.dumps(result) + "\n")
        rounds.append(this)
        quiet += args.quiet is None or max((r["foreign_cores"] for r in this.values()), default=9) <= args.quiet
    rounds.sort(key=lambda t: max((r["foreign_cores"] for r in t.values()), default=9))
    rounds = rounds[: args.runs] if args.quiet is not None else rounds
    results = {name: [t[name] for t in rounds if name in t] for name, _, _ in servers}
    print(f"## {args.title or ' '.join(command)}  ({len(rounds)} rounds, alternating)")
    first = servers[0][0]
    for name, _, _ in servers:
        rs = results[name]
        bad = sorted({trouble(r) for r in rs} - {""})
        cells = []
        for path, title in FIELDS:
            values = [v for v in (field(r, path) for r in rs) if v]
            per_message = path in ("msgs_s", "server_us_per_msg")
            if not values or (per_message and field(rs[0], "msgs_s") in (0, field(rs[0], "ops_s"))):
                continue  # nothing new next to the figure per request
            m = statistics.median(values)
            cells.append(f"{title} {m:.4g} [{min(values):.4g}-{max(values):.4g}]")
            if path == "ops_s" and name != first and results[first]:
                base = statistics.median(field(r, "ops_s") for r in results[first])
                cells.append(f"({m / base:.2f}x {first})" if base else "")
        print(f"{name:>12}: " + "  ".join(cells) + (f"  ERRORS {bad}" if bad else ""))
    sys.stdout.flush()


if __name__ == "__main__":
    main()

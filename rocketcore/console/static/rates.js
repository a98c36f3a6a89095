// Draws the lines of the rates with uPlot, and asks for new values as often as a row is long.
(() => {
  "use strict";
  const style = () => getComputedStyle(document.documentElement);
  const colour = (name) => style().getPropertyValue(name).trim();
  const parts = { msgs: ["in_msgs", "out_msgs"], in_bytes: ["in_bytes"], put_ms: ["p50_ms", "p99_ms"], lag: ["lag"] };
  const units = { msgs: "msg/s", in_bytes: "B/s", put_ms: "ms", lag: "msg" };
  const short = (value) => {
    for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
      if (Math.abs(value) >= size) return `${+(value / size).toFixed(1)}${letter}`;
    }
    return String(+value.toFixed(2));
  };
  const binary = (value) => {
    for (const [size, letter] of [[2 ** 30, "Gi"], [2 ** 20, "Mi"], [1024, "Ki"]]) {
      if (Math.abs(value) >= size) return `${+(value / size).toFixed(1)} ${letter}`;
    }
    return `${+value.toFixed(0)} `;
  };
  // 24 hours and ISO dates whatever the browser's language, in its zone; as many digits as the distance of ticks needs.
  const iso = (time) => new Date(time * 1000).toLocaleString("sv");
  const clock = (_, ticks, axis, space, step) =>
    ticks.map((tick) => (step < 60 ? iso(tick).slice(11) : step < 86400 ? iso(tick).slice(11, 16) : iso(tick).slice(5, 10)));
  const byteTicks = (_, axis, low, high) => {
    const unit = 1024 ** Math.floor(Math.log(Math.max(1, high)) / Math.log(1024));
    const step = [0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500].find((each) => each * unit * 5 >= high) * unit;
    return Array.from({ length: Math.floor(high / step) + 1 }, (_, number) => number * step);
  };
  const plots = [...document.querySelectorAll("[data-plot]")].map((box) => {
    const names = parts[box.dataset.plot];
    const unit = units[box.dataset.plot];
    const bytes = box.dataset.plot === "in_bytes";
    const shown = (value) => (bytes ? `${binary(value)}${unit}` : `${short(value)} ${unit}`);
    const axis = { stroke: () => colour("--muted"), grid: { stroke: () => colour("--line"), width: 1 }, ticks: { show: false } };
    const labels = names.length > 1 ? box.dataset.labels.split("|") : [unit];
    const lines = names.map((name, number) => ({
      label: labels[number],
      stroke: () => colour(number ? "--good" : "--accent"),
      width: 1.5,
      points: { show: false },
      value: (_, value) => (value == null ? "–" : shown(value)),
    }));
    const plot = new uPlot({
      width: box.clientWidth, height: 180,
      cursor: { y: false },
      scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [
        { ...axis, size: 32, space: 72, values: clock },
        { ...axis, size: 72, values: (_, ticks) => ticks.map(bytes ? binary : short), ...(bytes ? { splits: byteTicks } : {}) },
      ],
      series: [{ label: box.dataset.time, value: (_, time) => (time == null ? "–" : iso(time)) }, ...lines],
    }, [[], ...names.map(() => [])], box);
    return { box, names, plot };
  });
  const load = async () => {
    const answer = await fetch(plots[0].box.dataset.source);
    if (!answer.ok) return;
    const table = await answer.json();
    for (const { names, plot } of plots) plot.setData([table.time, ...names.map((name) => table[name])]);
    setTimeout(load, Math.max(1, table.step_seconds) * 1000);
  };
  addEventListener("resize", () => {
    for (const { box, plot } of plots) plot.setSize({ width: box.clientWidth, height: 180 });
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const { plot } of plots) plot.redraw(false);
  });
  if (plots.length) load();
})();

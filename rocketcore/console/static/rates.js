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
  const plots = [...document.querySelectorAll("[data-plot]")].map((box) => {
    const names = parts[box.dataset.plot];
    const unit = units[box.dataset.plot];
    const axis = { stroke: () => colour("--muted"), grid: { stroke: () => colour("--line"), width: 1 }, ticks: { show: false } };
    const labels = names.length > 1 ? box.dataset.labels.split("|") : [unit];
    const lines = names.map((name, number) => ({
      label: labels[number],
      stroke: () => colour(number ? "--good" : "--accent"),
      width: 1.5,
      points: { show: false },
      value: (_, value) => (value == null ? "–" : `${short(value)} ${unit}`),
    }));
    const plot = new uPlot({
      width: box.clientWidth, height: 180,
      cursor: { y: false },
      scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [axis, { ...axis, size: 64, values: (_, ticks) => ticks.map((tick) => `${short(tick)}`) }],
      series: [{ value: (_, time) => (time == null ? "–" : new Date(time * 1000).toLocaleTimeString()) }, ...lines],
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

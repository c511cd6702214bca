// Charts: draw the data of each figure with uPlot; the legend shows the values under the pointer.
"use strict";
(() => {
  const zone = document.documentElement.dataset.timezone;
  const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"], [0.001, "ms"]];
  const duration = (seconds) => {
    if (seconds === 0) return "0 s";
    const [size, name] = UNITS.find(([least]) => seconds >= least) || UNITS.at(-1);
    const number = seconds / size;
    return `${Number(number.toPrecision(number < 10 ? 2 : 3))} ${name}`;
  };
  const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
  const exact = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });
  const FORMATS = {
    s: { axis: duration, value: duration, incrs: [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600] },
    count: { axis: (value) => compact.format(value), value: (value) => exact.format(value) },
  };
  const drawn = new Map();

  // A colour of the style sheet for a canvas, which knows no custom properties.
  const colour = (host, name) => {
    const probe = document.createElement("i");
    probe.className = name;
    host.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  };
  const translucent = (text, share) => text.replace(/^rgb\((.*)\)$/, `rgba($1, ${share})`);

  const clock = (seconds) =>
    new Date(seconds * 1000).toLocaleString("sv", { timeZone: zone, dateStyle: "short", timeStyle: "short" });

  // Bars on top of each other: each series gets the sum of itself and those below it.
  const stacked = (series) => {
    const sums = [];
    let below = series.length ? series[0].values.map(() => 0) : [];
    for (const one of series) {
      below = below.map((sum, number) => sum + (one.values[number] || 0));
      sums.push(below);
    }
    return sums;
  };

  // A vertical line with the name of a release for each mark within the chart.
  const drawMarks = (self, marks, host) => {
    const { ctx, bbox } = self, ratio = devicePixelRatio, taken = [];
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = colour(host, "tone-late");
    ctx.font = `${11 * ratio}px system-ui, sans-serif`;
    ctx.textBaseline = "top";
    ctx.textAlign = "left";
    ctx.lineWidth = 1.5 * ratio;
    ctx.setLineDash([4 * ratio, 3 * ratio]);
    for (const [at, name] of marks) {
      const x = Math.round(self.valToPos(at, "x", true));
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      const text = name.length > 12 ? `${name.slice(0, 11)}…` : name;
      const width = ctx.measureText(text).width + 4 * ratio;
      const right = x + width < bbox.left + bbox.width;
      const [from, to] = right ? [x, x + width] : [x - width, x];
      // The last release comes first: earlier names give way.
      if (taken.some(([low, high]) => from < high && low < to)) continue;
      taken.push([from, to]);
      ctx.fillText(text, right ? x + 4 * ratio : from, bbox.top);
    }
    ctx.restore();
  };

  const draw = (host) => {
    const text = host.dataset.chart;
    const old = drawn.get(host);
    if (old) old.plot.destroy();
    const { unit, bars, times, series, marks } = JSON.parse(text);
    const format = FORMATS[unit] || FORMATS.count;
    const figure = host.closest("figure");
    const legend = [...figure.querySelectorAll(".legend b")];
    const totals = legend.map((item) => item.textContent);
    const at = figure.querySelector(".at"), span = at.textContent;
    const order = series.map((_, number) => number);
    const values = bars ? stacked(series) : series.map((one) => one.values);
    // The highest bars first, so that the lower ones are drawn over them.
    if (bars) order.reverse();
    const line = colour(host, "grid-line"), quiet = colour(host, "axis-text");
    // Bars at the ends keep their full width.
    const edge = bars && times.length > 1 ? (times[1] - times[0]) / 2 : 0;
    const axis = { stroke: quiet, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const plot = new uPlot(
      {
        width: Math.max(host.clientWidth, 100),
        height: host.clientHeight,
        tzDate: zone ? (seconds) => uPlot.tzDate(new Date(seconds * 1000), zone) : undefined,
        legend: { show: false },
        // The last text below may reach beyond the plot.
        padding: [10, 16, 0, 0],
        cursor: { y: false, drag: { x: false, y: false }, sync: { key: "redis_queue" }, points: { show: !bars } },
        scales: { x: { range: (_, low, high) => [low - edge, high + edge] }, y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : unit === "s" ? 0.01 : 1] } },
        axes: [
          { ...axis, grid: { show: false }, size: 38, space: 64, values: [
            [86400, "{DD} {MMM}", null, null, null, null, null, null, 1],
            [3600, "{HH}:{mm}", "\n{DD} {MMM}", null, "\n{DD} {MMM}", null, null, null, 1],
            [60, "{HH}:{mm}", "\n{DD} {MMM}", null, "\n{DD} {MMM}", null, null, null, 1],
            [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1],
          ] },
          { ...axis, size: (_, texts) => 14 + 6.5 * Math.max(3, ...(texts || []).map((one) => one.length)), space: 34, incrs: format.incrs, values: (_, ticks) => ticks.map(format.axis) },
        ],
        series: [
          {},
          ...order.map((number) => {
            const tone = colour(host, `tone-${series[number].tone}`);
            return bars
              ? { fill: tone, width: 0, paths: uPlot.paths.bars({ size: [0.86, 28] }), points: { show: false } }
              : { stroke: tone, width: 1.75, spanGaps: false, points: { size: 4, fill: tone }, fill: number ? undefined : translucent(tone, 0.12) };
          }),
        ],
        hooks: {
          draw: [(self) => drawMarks(self, marks, host)],
          setCursor: [(self) => {
            const index = self.cursor.idx;
            series.forEach((one, number) => {
              const value = index == null ? null : one.values[index];
              legend[number].textContent = index == null ? totals[number] : value == null ? "-" : format.value(value);
            });
            const step = times.length > 1 ? times[1] - times[0] : 60;
            const since = index == null ? [] : marks.filter(([at]) => at >= times[index] && at < times[index] + step);
            at.textContent = index == null ? span : [clock(times[index]), ...since.map(([, name]) => name)].join(" · ");
          }],
        },
      },
      [times, ...order.map((number) => values[number])],
      host,
    );
    drawn.set(host, { plot, text });
  };

  const sizes = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const found = drawn.get(target);
      if (found && target.clientWidth && target.clientWidth !== found.plot.width) {
        found.plot.setSize({ width: target.clientWidth, height: target.clientHeight });
      }
    }
  });
  const drawAll = (again) => {
    for (const host of drawn.keys()) {
      if (host.isConnected) continue;
      drawn.get(host).plot.destroy();
      sizes.unobserve(host);
      drawn.delete(host);
    }
    for (const host of document.querySelectorAll("[data-chart]")) {
      const found = drawn.get(host);
      if (!again && found && found.text === host.dataset.chart) continue;
      draw(host);
      if (!found) sizes.observe(host);
    }
  };
  drawAll(false);
  document.addEventListener("htmx:afterSwap", () => drawAll(false));
  document.documentElement.addEventListener("redis_queue:theme", () => drawAll(true));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll(true));
})();

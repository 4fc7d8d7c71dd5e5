// The two figures of a series: its history with the card's lanes below it, and the samples of one night.
"use strict";

const CARD_SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "star", "pentagon", "hexagon"];
const MAIN_FROM = 0.42; // share of the figure's height that lanes lie below
const WHOLE_NIGHTS = 60; // the newest ones, of which every process is a mark; more marks than that are slow

// Cards share a hue and differ by shade and by shape.
const shade = (place) => 1 - 0.18 * (place % 4);

// Where nights lie: on a date axis, or evenly in their order.
function places(timeline, byOrder) {
  return timeline.nights.map((night, index) => (byOrder ? index : night.utc));
}

function orderTicks(timeline) {
  const every = Math.ceil(timeline.nights.length / 8);
  const values = timeline.nights.map((_, index) => index).filter((index) => index % every === 0);
  return { tickmode: "array", tickvals: values, ticktext: values.map((index) => timeline.nights[index].utc.slice(0, 10)) };
}

// Of the newest nights with a value every process; of each older one the lowest and the highest. As places of processes, by night.
function drawnProcesses(timeline, series) {
  const byNight = new Map();
  timeline.processes.forEach(({ night }, index) => {
    if (series.values[index] !== null) byNight.set(night, [...(byNight.get(night) ?? []), index]);
  });
  const nights = [...byNight], end = (own, sign) => own.reduce((a, b) => (sign * series.values[b] > sign * series.values[a] ? b : a));
  const whole = nights.slice(-WHOLE_NIGHTS).flatMap(([, own]) => own), ends = nights.slice(0, -WHOLE_NIGHTS).map(([night, own]) => [night, [end(own, -1), end(own, 1)]]);
  return { whole: new Set(whole), ends, any: new Set([...whole, ...ends.flatMap(([, own]) => own)]) };
}

// One upright for each old night; a mark for each of its processes would take a browser seconds.
function rangeTraces(timeline, series, x, c, ends) {
  if (!ends.length) return [];
  const flat = (pick) => ends.flatMap(([night, own]) => [...own.map((index) => pick(night, index)), null]);
  return [{
    name: "lowest to highest process", mode: "lines", opacity: 0.5, line: { color: c.ours, width: 2 },
    x: flat((night) => x[night]), y: flat((_, index) => series.values[index]), customdata: flat((night) => night),
    text: flat((night, index) => `${timeline.nights[night].when}<br>one process: ${withUnit(series.values[index], series.unit)}`), hovertemplate: "%{text}<extra></extra>",
  }];
}

function dotTraces(timeline, series, x, c, drawn) {
  return timeline.cards.map((card, place) => {
    const own = timeline.processes.map((process, index) => [process, index]).filter(([process, index]) => process.card === place && drawn.whole.has(index));
    return {
      name: `card ${card}`, showlegend: timeline.cards.length > 1, mode: "markers",
      x: own.map(([process]) => x[process.night]), y: own.map(([, index]) => series.values[index]),
      customdata: own.map(([process]) => process.night),
      text: own.map(([process, index]) => `${timeline.nights[process.night].when}, card ${card}<br>one process: ${withUnit(series.values[index], series.unit)}`),
      marker: { color: c.ours, size: 6, opacity: 0.75 * shade(place), symbol: CARD_SYMBOLS[place % CARD_SYMBOLS.length] },
      hovertemplate: "%{text}<extra></extra>",
    };
  });
}

function medianTrace(timeline, series, x, c) {
  const trace = { name: "median of the night", x: [], y: [], text: [], customdata: [], mode: timeline.nights.length > WHOLE_NIGHTS ? "lines" : "lines+markers", line: { color: c.ours, width: 1.5 }, marker: { color: c.surface, size: 8, symbol: "circle", line: { color: c.ours, width: 2 } }, hovertemplate: "%{text}<extra></extra>" };
  let before = null;
  series.medians.forEach((value, index) => {
    if (value === null) return;
    const night = timeline.nights[index];
    const add = (y) => { trace.x.push(x[index]); trace.y.push(y); trace.text.push(`${night.when}, ${night.commit}<br>median ${withUnit(value, series.unit)}`); trace.customdata.push(index); };
    if (before !== null && before !== night.environment) add(null); // the series is cut here
    before = night.environment;
    add(value);
  });
  return trace;
}

function levelTrace(series, x, c) {
  const flat = (pick) => series.levels.flatMap((level) => [...pick(level), null]);
  return { name: "level", x: flat(([first, last]) => [x[first], x[last]]), y: flat(([, , value]) => [value, value]), mode: "lines", line: { color: c.full, width: 3, dash: "dot" }, hoverinfo: "skip" };
}

function verdictTraces(timeline, series, x, c) {
  const marked = { regressed: ["triangle-up", "▲ regressed"], invalid: ["x", "✕ invalid"], missing: ["hexagon", "∅ missing"] };
  return Object.entries(marked).flatMap(([name, [symbol, label]]) => {
    const own = series.verdicts.map((_, index) => index).filter((index) => series.verdicts[index] === name && series.medians[index] !== null);
    return own.length ? [{ name: label, x: own.map((index) => x[index]), y: own.map((index) => series.medians[index]), customdata: own, mode: "markers", marker: { symbol: `${symbol}-open`, size: 17, color: c.bad, line: { color: c.bad, width: 2 } }, hoverinfo: "skip" }] : [];
  });
}

function laneTraces(timeline, lanes, x, c, drawn) {
  const own = timeline.processes.map((process, index) => ({ ...process, index })).filter(({ index }) => drawn.any.has(index));
  return lanes.map((lane, row) => ({
    name: lane.title, showlegend: false, yaxis: `y${row + 2}`,
    mode: timeline.nights.length > WHOLE_NIGHTS ? "lines" : "markers", line: { color: c.quiet, width: 1 },
    x: own.map(({ night }) => x[night]), y: own.map(({ index }) => lane.values[index]),
    customdata: own.map(({ night }) => night),
    text: own.map(({ night }) => timeline.nights[night].when),
    marker: { color: c.quiet, size: 4, symbol: timeline.cards.length > 1 ? own.map(({ card }) => CARD_SYMBOLS[card % CARD_SYMBOLS.length]) : CARD_SYMBOLS[0] },
    hovertemplate: `%{text}<br>${lane.title}: %{y} ${lane.unit}<extra></extra>`,
  }));
}

// Upright lines through all lanes: cuts of the environment dashed, steps of the series solid.
function uprights(timeline, series, x, selected, c) {
  const line = (index, style) => ({ type: "line", xref: "x", yref: "paper", x0: x[index], x1: x[index], y0: 0, y1: 1, line: style });
  const say = (index, text, colour, side) => ({ x: x[index], y: 1, yref: "paper", yanchor: "top", xanchor: side, text, showarrow: false, font: { size: 11, color: colour }, textangle: -90 });
  const cuts = timeline.nights.map((_, index) => index).filter((index) => timeline.nights[index].cut);
  const shapes = cuts.map((index) => line(index, { color: c.quiet, width: 1, dash: "dash" }));
  const annotations = cuts.map((index) => say(index, shorten(timeline.nights[index].cut), c.quiet, "right"));
  for (const [index, change] of series.changes) {
    shapes.push(line(index, { color: c.full, width: 1.5 }));
    annotations.push(say(index, `${change > 0 ? "▲" : "▼"} ${percent(change)}`, c.full, "left"));
  }
  if (selected !== -1) shapes.push(line(selected, { color: c.ours, width: 6 })), Object.assign(shapes.at(-1), { opacity: 0.25, layer: "below" });
  return { shapes, annotations };
}

const shorten = (text) => (text.length > 60 ? `${text.slice(0, 59)}…` : text);

function valueTitle(series, narrow) {
  const better = { lower: "lower is better", higher: "higher is better", equal: "must not change" }[series.better];
  return narrow ? unitName(series.unit) : `${unitName(series.unit)} (${better})`;
}

function drawSeries(element, timeline, series, { byOrder, selected }) {
  if (series.medians.every((value) => value === null)) return say(element, `No night has a value of this series: ${Object.values(series.reasons)[0] ?? "not measured"}.`);
  const lanes = timeline.lanes.filter((lane) => !lane.missing);
  const even = byOrder || timeline.nights.length === 1; // a date axis of one night shows milliseconds
  return plot(element, (c) => {
    const x = places(timeline, even), narrow = element.clientWidth < NARROW_PX, drawn = drawnProcesses(timeline, series);
    const layout = { ...baseLayout(c), ...uprights(timeline, series, x, selected, c) };
    const from = lanes.length ? MAIN_FROM : 0, height = lanes.length ? MAIN_FROM / lanes.length : 0;
    layout.yaxis = { ...layout.yaxis, domain: [from + (lanes.length ? 0.03 : 0), 1], title: { text: valueTitle(series, narrow) }, tickformat: ",~g" };
    lanes.forEach((lane, row) => {
      layout[`yaxis${row + 2}`] = { ...baseLayout(c).yaxis, domain: [from - (row + 1) * height + 0.02, from - row * height - 0.02], title: { text: lane.unit, font: { size: 11 } }, nticks: 3, rangemode: "normal" };
      layout.annotations.push({ text: lane.title, x: 0, xref: "paper", xanchor: "left", y: from - row * height - 0.02, yref: "paper", yanchor: "bottom", showarrow: false, font: { size: 11, color: c.quiet } });
    });
    const axis = { ...layout.xaxis, title: { text: even ? "nights in order (UTC)" : "night (UTC)" }, anchor: lanes.length ? `y${lanes.length + 1}` : "y" };
    layout.xaxis = even ? { ...axis, ...orderTicks(timeline) } : { ...axis, type: "date", hoverformat: "%Y-%m-%d %H:%M UTC" };
    return [[...laneTraces(timeline, lanes, x, c, drawn), ...rangeTraces(timeline, series, x, c, drawn.ends), ...dotTraces(timeline, series, x, c, drawn), levelTrace(series, x, c), medianTrace(timeline, series, x, c), ...verdictTraces(timeline, series, x, c)], layout];
  });
}

// Processes side by side in the order they ran; a cross is a sample that does not count.
function drawSamples(element, processes, series) {
  return plot(element, (c) => {
    const [counted, dropped, lines] = [0, 1, 2].map(() => ({ x: [], y: [], text: [] }));
    let start = 0;
    for (const { label, values, dropped: out } of processes) {
      const away = new Set(out);
      values.forEach((value, index) => {
        const trace = away.has(index) ? dropped : counted;
        trace.x.push(start + index); trace.y.push(value); trace.text.push(`${label}, sample ${index}: ${withUnit(value, series.unit)}`);
      });
      const middle = median(values.filter((_, index) => !away.has(index)));
      lines.x.push(start, start + values.length - 1, null); lines.y.push(middle, middle, null);
      start += values.length + Math.ceil(values.length / 10);
    }
    const layout = baseLayout(c);
    layout.xaxis = { ...layout.xaxis, title: { text: "samples in order, process after process" }, showticklabels: false };
    layout.yaxis = { ...layout.yaxis, title: { text: valueTitle(series, element.clientWidth < NARROW_PX) }, tickformat: ",~g" };
    const hover = { hovertemplate: "%{text}<extra></extra>", mode: "markers" };
    const traces = [
      { ...counted, ...hover, name: "sample", marker: { color: c.ours, size: 5, opacity: 0.7 } },
      { ...lines, name: "median of the process", mode: "lines", line: { color: c.full, width: 2 }, hoverinfo: "skip" },
    ];
    if (dropped.x.length) traces.push({ ...dropped, ...hover, name: "does not count", marker: { color: c.bad, size: 8, symbol: "x" } });
    return [traces, layout];
  });
}

// Everything here is comfort: without it the page shows the first of every choice.
"use strict";
document.documentElement.classList.add("live");
const colors = JSON.parse(document.getElementById("colors").textContent);
const tip = document.getElementById("tip");

function showTip(event, text) {
  tip.textContent = text;
  tip.hidden = false;
  const x = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 6);
  const below = event.clientY + 16;
  const y = below + tip.offsetHeight < window.innerHeight ? below : event.clientY - tip.offsetHeight - 10;
  tip.style.left = Math.max(x, 4) + "px";
  tip.style.top = Math.max(y, 4) + "px";
}
const hideTip = () => { tip.hidden = true; };
const shown = (value) => (value === null || Number.isNaN(value) ? "no value" : String(Number(value.toPrecision(4))));

// What a part of a picture says of itself.
for (const svg of document.querySelectorAll("svg.figure")) {
  svg.addEventListener("pointermove", (event) => {
    const part = event.target.closest("[data-tip]");
    if (part) showTip(event, part.dataset.tip);
  });
  svg.addEventListener("pointerout", (event) => { if (event.target.closest("[data-tip]")) hideTip(); });
}

const bytesOf = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const floats = (text) => new Float32Array(bytesOf(text).buffer);

/** Where a value stands on an axis, from 0 to 1, as in axis.cpp. */
function share(axis, value) {
  if (axis.log) return value <= axis.low ? 0 : Math.min(Math.log(value / axis.low) / Math.log(axis.high / axis.low), 1);
  return Math.min(Math.max((value - axis.low) / (axis.high - axis.low), 0), 1);
}
const place = (frame, xAxis, yAxis, x, y) => [
  frame.left + frame.width * share(xAxis, x),
  frame.top + frame.height * (1 - share(yAxis, y)),
];
/** The mouse in the units of the picture. */
function inside(svg, event) {
  const box = svg.getBoundingClientRect(), view = svg.viewBox.baseVal;
  return [(event.clientX - box.left) * view.width / box.width, (event.clientY - box.top) * view.height / box.height];
}

function picked(figure) {
  return [...figure.querySelectorAll(".picks select")];
}

// Variants: one of several pictures in the same place.
for (const figure of document.querySelectorAll("figure")) {
  const variants = [...figure.querySelectorAll(".variant")].map((node) => ({ node, key: JSON.parse(node.dataset.picked) }));
  if (variants.length < 2) continue;
  const selects = picked(figure);
  selects.forEach((select, changed) => select.addEventListener("change", () => {
    const wanted = selects.map((s) => s.value);
    const matches = (v) => v.key.filter((part, i) => part === wanted[i]).length + (v.key[changed] === wanted[changed] ? 100 : 0);
    const best = variants.reduce((a, b) => (matches(b) > matches(a) ? b : a));
    for (const v of variants) v.node.hidden = v !== best;
    selects.forEach((s, i) => { s.value = best.key[i]; });
  }));
}

// Line plots: all values at the nearest x, and the line whose name the mouse is on.
for (const probe of document.querySelectorAll(".probe[data-plot]")) {
  const svg = probe.ownerSVGElement, plot = JSON.parse(probe.dataset.plot);
  probe.plot = plot;
  probe.addEventListener("pointermove", (event) => {
    const [x] = inside(svg, event);
    let near = 0;
    const distance = (i) => Math.abs(plot.frame.left + plot.frame.width * share(plot.x, plot.at[i]) - x);
    plot.at.forEach((_, i) => { if (distance(i) < distance(near)) near = i; });
    const rows = plot.lines.filter((line) => line.values[near] !== null && line.values[near] !== undefined)
      .sort((a, b) => b.values[near] - a.values[near]).map((line) => `${line.name}: ${shown(line.values[near])}`);
    showTip(event, `${plot.x.label}: ${shown(plot.at[near])}\n${rows.join("\n")}`);
  });
  probe.addEventListener("pointerleave", hideTip);
  for (const name of svg.querySelectorAll("text[data-key]")) {
    const others = () => [...svg.querySelectorAll("[data-line]")].filter((node) => node.dataset.line !== name.dataset.key);
    name.addEventListener("pointerenter", () => others().forEach((node) => node.classList.add("faint")));
    name.addEventListener("pointerleave", () => others().forEach((node) => node.classList.remove("faint")));
  }
}

// Lines that change with the choice: data.values holds [line][x] by the numbers of the options, data.axes their y, where it changes.
for (const host of document.querySelectorAll("[data-kind=series]")) {
  const figure = host.closest("figure"), data = JSON.parse(host.querySelector("script").textContent);
  const svg = host.querySelector("svg"), probe = svg.querySelector(".probe"), selects = picked(figure);
  const draw = () => {
    const choice = selects.map((s) => s.selectedIndex).join(","), values = data.values[choice];
    if (data.axes[choice]) {
      probe.plot.y = data.axes[choice];
      svg.querySelector("[data-axis=y]").replaceChildren(...axisNodes(probe.plot.frame, probe.plot.y, false));
    }
    probe.plot.lines.forEach((line, i) => {
      line.values = values ? values[i] : line.values.map(() => null);
      let path = "", down = false;
      line.values.forEach((value, j) => {
        if (value !== null) {
          const [x, y] = place(probe.plot.frame, probe.plot.x, probe.plot.y, probe.plot.at[j], value);
          path += `${down ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
        }
        down = value !== null || (data.bridged && down);
      });
      svg.querySelector(`path[data-line="${i}"]`).setAttribute("d", path);
    });
  };
  selects.forEach((select) => select.addEventListener("change", draw));
}

/** Grid, ticks and label of one axis, as plot_frame.cpp draws them. */
function axisNodes(frame, axis, across) {
  const nodes = [], { left, top, width, height } = frame;
  const make = (name, attributes, text) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    nodes.push(node);
  };
  for (const [at, text] of axis.ticks) {
    const x = left + width * at, y = top + height * (1 - at);
    make("line", across ? { x1: x, x2: x, y1: top, y2: top + height, class: "grid" } : { x1: left, x2: left + width, y1: y, y2: y, class: "grid" });
    make("text", across ? { x, y: top + height + 16, "text-anchor": "middle" } : { x: left - 6, y: y + 4, "text-anchor": "end" }, text);
  }
  const middle = top + height / 2;
  make("text", across
    ? { x: left + width / 2, y: top + height + 34, "text-anchor": "middle", class: "label" }
    : { x: 13, y: middle, "text-anchor": "middle", class: "label", transform: `rotate(-90 13 ${middle})` }, axis.label);
  return nodes;
}

// Scatter plots: the tokens of one head by any two of its metrics.
for (const host of document.querySelectorAll("[data-kind=scatter]")) {
  const figure = host.closest("figure"), data = JSON.parse(host.querySelector("script").textContent);
  const svg = host.querySelector("svg"), probe = svg.querySelector(".probe"), ring = svg.querySelector(".ring");
  const selects = picked(figure);
  let points = [], chosen = null;
  const mark = (point) => {
    ring.setAttribute("cx", point ? point.x : -9);
    ring.setAttribute("cy", point ? point.y : -9);
  };
  const markChosen = () => mark(points.find((point) => point.token === chosen));
  const draw = (paint) => {
    const [head, across, up] = selects.map((s) => s.selectedIndex);
    const xName = data.scores[across], yName = data.references[up];
    const tokens = floats(data.tokens[head]), xs = floats(data.values[head][xName]), ys = floats(data.values[head][yName]);
    const xAxis = data.axes[head][xName], yAxis = data.axes[head][yName];
    points = [];
    tokens.forEach((token, i) => {
      if (Number.isNaN(xs[i]) || Number.isNaN(ys[i])) return;
      const [x, y] = place(data.frame, xAxis, yAxis, xs[i], ys[i]);
      points.push({ token, x, y, across: xs[i], up: ys[i] });
    });
    markChosen();
    if (!paint) return;
    svg.querySelector("[data-axis=x]").replaceChildren(...axisNodes(data.frame, xAxis, true));
    svg.querySelector("[data-axis=y]").replaceChildren(...axisNodes(data.frame, yAxis, false));
    svg.querySelector("[data-points]").setAttribute("d", points.map((p) => `M${p.x.toFixed(1)} ${p.y.toFixed(1)}h0`).join(""));
    const rho = (data.rho[`${xName}~${yName}`] || [])[head];
    svg.querySelector("[data-corner]").textContent = rho === undefined || rho === null ? "" : `rho ${shown(rho)}`;
  };
  selects.forEach((select) => select.addEventListener("change", () => draw(true)));
  draw(false);
  const nearest = (event) => {
    const [x, y] = inside(svg, event);
    let near = null, least = 200;
    for (const p of points) {
      const distance = (p.x - x) ** 2 + (p.y - y) ** 2;
      if (distance < least) { least = distance; near = p; }
    }
    return near;
  };
  document.addEventListener("token", (event) => { chosen = event.detail; markChosen(); });
  probe.addEventListener("click", (event) => {
    const near = nearest(event);
    if (near) chooseToken(near.token, true);
  });
  probe.addEventListener("pointermove", (event) => {
    const near = nearest(event);
    mark(near);
    if (!near) return hideTip();
    const names = selects.map((s) => s.value);
    const text = data.texts[near.token];
    showTip(event, `token ${near.token}${text ? ` ${text}` : ""}\n${names[1]}: ${shown(near.across)}\n${names[2]}: ${shown(near.up)}`);
  });
  probe.addEventListener("pointerleave", () => { hideTip(); markChosen(); });
}

// Head maps: one grid of heads, coloured by any figure. A figure's name is in parts; every list holds what fits the lists before.
function colorAt(scale, value) {
  let t;
  if (scale.log) t = value <= scale.low ? 0 : Math.min(Math.log(value / scale.low) / Math.log(scale.high / scale.low), 1);
  else t = Math.min(Math.max((value - scale.low) / (scale.high - scale.low), 0), 1);
  if (scale.flipped) t = 1 - t;
  const table = scale.diverging ? colors.diverging : colors.sequential;
  return table[Math.round(t * (table.length - 1))];
}
/** Whether text on this colour is to be light, as in color_scale.cpp. */
function dark(color) {
  const part = (i) => {
    const c = parseInt(color.slice(i, i + 2), 16) / 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  };
  return 0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5) < 0.179;
}
for (const host of document.querySelectorAll("[data-kind=cells]")) {
  const figure = host.closest("figure"), data = JSON.parse(host.querySelector("script").textContent);
  const svg = host.querySelector("svg"), selects = picked(figure), none = svg.querySelector("pattern").id;
  const cells = [...svg.querySelectorAll("[data-cell]")].sort((a, b) => a.dataset.cell - b.dataset.cell);
  const numbers = [...svg.querySelectorAll("[data-number]")];
  const places = cells.map((cell) => cell.dataset.tip.replace(/: [^:]*$/, ""));
  const refill = (from) => {
    for (let i = from; i < selects.length; ++i) {
      const wanted = selects[i].value, before = selects.slice(0, i).map((s) => s.value);
      const options = [];
      for (const map of data.maps)
        if (before.every((part, j) => map.name[j] === part) && !options.includes(map.name[i])) options.push(map.name[i]);
      selects[i].replaceChildren(...options.map((name) => new Option(name, name)));
      selects[i].value = options.includes(wanted) ? wanted : options[0];
      selects[i].parentElement.hidden = options.length < 2 && options[0] === "";
    }
  };
  const draw = () => {
    const map = data.maps.find((m) => m.name.every((part, i) => part === selects[i].value));
    const scale = data.scales[map.scale];
    cells.forEach((cell, i) => {
      const value = map.values[i];
      cell.setAttribute("fill", value === null ? `url(#${none})` : colorAt(scale, value));
      cell.dataset.tip = `${places[i]}: ${shown(value)}`;
    });
    numbers.forEach((node) => {
      const value = map.values[Number(node.dataset.number)];
      node.textContent = value === null ? "" : String(Number(value.toPrecision(3)));
      node.classList.toggle("on-dark", value !== null && dark(colorAt(scale, value)));
      node.classList.toggle("on-light", value !== null && !dark(colorAt(scale, value)));
    });
    for (const step of svg.querySelectorAll("[data-legend]")) {
      const t = (Number(step.dataset.legend) + 0.5) / 40;
      step.setAttribute("fill", colorAt({ ...scale, log: false, low: 0, high: 1 }, t));
    }
    svg.querySelector("[data-low]").textContent = shown(scale.low);
    svg.querySelector("[data-high]").textContent = shown(scale.high);
    svg.querySelector("[data-middle]").textContent = scale.log ? "log" : shown((scale.low + scale.high) / 2);
    svg.querySelector("[data-value-label]").textContent = map.name.filter((part) => part !== "").join(", ");
  };
  refill(0);
  selects.forEach((select, i) => select.addEventListener("change", () => { refill(i + 1); draw(); }));
}

// Interaction heatmaps: the upper half of a symmetric matrix of float16, in shares of its limit.
function halves(text) {
  return Float32Array.from(new Uint16Array(bytesOf(text).buffer), (bits) => {
    const sign = bits & 0x8000 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
    if (exponent === 31) return fraction ? NaN : sign * Infinity;
    return exponent ? sign * 2 ** (exponent - 15) * (1 + fraction / 1024) : sign * 2 ** -14 * (fraction / 1024);
  });
}
for (const host of document.querySelectorAll("[data-kind=heat]")) {
  const figure = host.closest("figure"), data = JSON.parse(host.querySelector("script").textContent);
  const svg = host.querySelector("svg"), probe = svg.querySelector(".probe"), d = data.d, frame = data.frame;
  const [headList, prunedList] = picked(figure);
  let upper = null;
  const load = () => { upper = halves(data.heads[headList.selectedIndex].upper); };
  const share = (r, c) => { const [a, b] = r < c ? [r, c] : [c, r]; return upper[a * d - a * (a - 1) / 2 + b - a]; };
  const paint = () => {
    load();
    const head = data.heads[headList.selectedIndex], canvas = document.createElement("canvas");
    canvas.width = canvas.height = d;
    const context = canvas.getContext("2d");
    for (let r = 0; r < d; ++r) {
      for (let c = 0; c < d; ++c) {
        context.fillStyle = colorAt({ low: -1, high: 1, diverging: true }, share(r, c));
        context.fillRect(c, r, 1, 1);
      }
    }
    svg.querySelector("image").setAttribute("href", canvas.toDataURL());
    svg.querySelector("[data-low]").textContent = shown(-head.limit);
    svg.querySelector("[data-high]").textContent = shown(head.limit);
    mark();
  };
  const mark = () => {
    const bits = data.heads[headList.selectedIndex].pruned[prunedList.selectedIndex] || "";
    const cell = frame.side / d, { left, top, side, strip } = frame;
    const bars = [...bits].map((bit, c) => (bit === "1"
      ? `M${left + cell * c} ${top - strip - 2}h${cell}v${strip}h${-cell}zM${left + side + 2} ${top + cell * c}h${strip}v${cell}h${-strip}z` : ""));
    svg.querySelector("[data-strip]").setAttribute("d", bars.join(""));
    const name = svg.querySelector("[data-strip-name]");
    if (name) name.textContent = `green: pruned by ${prunedList.value}`;
  };
  headList.addEventListener("change", paint);
  prunedList.addEventListener("change", mark);
  probe.addEventListener("pointermove", (event) => {
    if (!upper) load();
    const [x, y] = inside(svg, event), head = data.heads[headList.selectedIndex];
    const c = Math.min(Math.floor((x - frame.left) / frame.side * d), d - 1), r = Math.min(Math.floor((y - frame.top) / frame.side * d), d - 1);
    if (r < 0 || c < 0) return hideTip();
    const bits = head.pruned[prunedList.selectedIndex] || "";
    const which = [r, c].filter((channel, i, both) => bits[channel] === "1" && both.indexOf(channel) === i);
    showTip(event, `channels ${r}, ${c}: ${shown(share(r, c) * head.limit)}${which.length ? `\npruned: ${which.join(", ")}` : ""}`);
  });
  probe.addEventListener("pointerleave", hideTip);
}

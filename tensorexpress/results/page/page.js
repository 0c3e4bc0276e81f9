"use strict";
// Timelines of a report: what workers computed and transferred, drawn anew for every part of the time that is looked at.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const GUTTER = 64, AXIS = 22, EDGE = 8;
  const FORWARD = 0, BACKWARD = 1, BLOCKED = 2, BLOCKED_BACKWARD = 3;
  const COMPUTE = ["forward", "backward", "blocked", "blocked"];
  const SAID = ["forward", "backward", "blocked before", "blocked in the backward pass before"];
  const PERFETTO = "https://ui.perfetto.dev";

  const block = (name) => JSON.parse(document.getElementById(name).textContent);

  function svg(name, attributes, text) {
    const element = document.createElementNS(SVG, name);
    for (const key in attributes) element.setAttribute(key, attributes[key]);
    if (text !== undefined) element.textContent = text;
    return element;
  }

  function html(name, attributes, ...children) {
    const element = document.createElement(name);
    for (const key in attributes) element.setAttribute(key, attributes[key]);
    element.append(...children);
    return element;
  }

  // --- what was packed by timeline_data.py

  async function unpack(text) {
    const letters = atob(text), bytes = new Uint8Array(letters.length);
    for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const planes = new Uint8Array(await new Response(stream).arrayBuffer());
    const count = planes.length / 4, numbers = new Int32Array(count);
    for (let i = 0; i < count; i++) {
      const value = planes[i] | (planes[count + i] << 8) | (planes[2 * count + i] << 16) | (planes[3 * count + i] << 24);
      numbers[i] = (value >>> 1) ^ -(value & 1);
    }
    return numbers;
  }

  function reader(numbers) {
    let at = 0;
    const column = (count) => numbers.subarray(at, (at += count));
    const times = (count) => {
      const start = Float64Array.from(column(count)), end = Float64Array.from(column(count));
      for (let i = 0; i < count; i++) {
        if (i) start[i] += start[i - 1];
        end[i] += start[i];
      }
      return { start, end };
    };
    return { column, times };
  }

  function readRun(run, layers, read) {
    run.data = run.workers.map(() => {
      const forward = read.times((run.iterations + 1) * layers), backward = read.times(run.iterations * layers);
      const transfers = run.kinds.map((kind) => {
        const count = read.column(1)[0], times = read.times(count), waited = read.column(count);
        const [iteration, layer, peer, queue, slices, low, high] = Array.from({ length: 7 }, () => read.column(count));
        return { kind, count, ...times, waited, iteration, layer, peer, queue, slices, low, high };
      });
      return { forward, backward, transfers };
    });
    run.layers = layers;
  }

  // What a worker computed and where it stood still, in order of time.
  function computed(run, place) {
    const data = run.data[place], n = run.layers;
    if (data.computed) return data.computed;
    const found = [], { forward, backward } = data;
    const add = (kind, iteration, layer, start, end) => {
      if (end > start) found.push({ kind, iteration: run.first + iteration, layer, start, end });
    };
    for (let i = 0; i <= run.iterations; i++) {
      for (let layer = 0; layer < n; layer++) {
        const at = i * n + layer;
        if (i) {
          const free = layer ? forward.end[at - 1] : backward.end[(i - 1) * n];
          add(BLOCKED, i, layer, free, forward.start[at]);
        }
        add(FORWARD, i, layer, forward.start[at], forward.end[at]);
      }
      for (let layer = n - 1; layer >= 0 && i < run.iterations; layer--) {
        const at = i * n + layer, free = layer < n - 1 ? backward.end[at + 1] : forward.end[at];
        add(BLOCKED_BACKWARD, i, layer, free, backward.start[at]);
        add(BACKWARD, i, layer, backward.start[at], backward.end[at]);
      }
    }
    return (data.computed = found);
  }

  // --- one timeline

  class Timeline {
    constructor(place, all) {
      this.all = all;
      this.case = all.cases[+place.dataset.case];
      this.job = +place.dataset.job;
      this.runs = all.runs.filter((run) => run.case === +place.dataset.case && run.job === this.job);
      this.names = this.case.layers[this.job];
      // Runs of other cases that did the same work can stand beside these.
      const same = (run) => String(all.cases[run.case].layers[run.job]) === String(this.names);
      this.comparable = all.runs.filter((run) => this.runs.includes(run) || (run.job === this.job && same(run)));
      this.view = "policies";
      const known = new Set(this.runs[0].workers.map(([worker]) => worker));
      this.worker = known.has(this.case.worker[this.job]) ? this.case.worker[this.job] : this.runs[0].workers[0][0];
      this.iteration = Math.max(this.case.warmup, ...this.runs.map((run) => run.first));
      this.focus = null;
      this.build(place);
      this.fit();
      new ResizeObserver(() => this.draw()).observe(this.stage);
    }

    build(place) {
      const title = `Timeline of ${this.case.title}`;
      this.axis = svg("svg", { height: AXIS, width: "100%", "aria-hidden": "true" });
      this.drawing = svg("svg", { width: "100%", "aria-hidden": "true" });
      this.lanes = html("div", { class: "lanes" }, this.drawing);
      this.tip = html("div", { class: "tip", hidden: "" });
      this.live = html("p", { class: "unseen", "aria-live": "polite" });
      this.said = html("p", { class: "said" });
      const keys = `help-${place.dataset.case}-${place.dataset.job}`;
      this.stage = html("div", {
        class: "stage", tabindex: 0, role: "application", "aria-label": title, "aria-describedby": keys,
      }, this.axis, this.lanes, this.tip);
      place.replaceChildren(this.tools(), this.stage, this.live, this.said, this.help(keys), this.key());
      this.listen();
    }

    tools() {
      const select = (label, options, value, change) => {
        const element = html("select", {}, ...options.map(([key, text]) => html("option", { value: key }, text)));
        element.value = value;
        element.addEventListener("change", () => { change(element.value); this.fit(); });
        return html("label", {}, label, element);
      };
      const button = (text, label, act) => {
        const element = html("button", { type: "button", "aria-label": label, title: label }, text);
        element.addEventListener("click", act);
        return element;
      };
      const views = [["policies", "one worker under every policy"]];
      if (this.comparable.length > this.runs.length) views.push(["cases", "one worker in every case"]);
      this.runs.forEach((run, i) => views.push([String(i), `all workers under ${run.policy}`]));
      const first = Math.max(...this.runs.map((run) => run.first));
      const last = Math.min(...this.runs.map((run) => run.first + run.iterations)) - 1;
      const iterations = [];
      for (let i = first; i <= last; i++) iterations.push([String(i), i < this.case.warmup ? `${i}, warm-up` : String(i)]);
      const workers = this.runs[0].workers.map(([worker, name]) => [String(worker), this.nameOf(worker, name)]);
      return html("div", { class: "tools", role: "toolbar", "aria-label": "Timeline" },
        select("Show", views, this.view, (value) => { this.view = value; }),
        select("Worker", workers, String(this.worker), (value) => { this.worker = +value; }),
        select("Iteration", iterations, String(this.iteration), (value) => { this.iteration = +value; }),
        button("−", "Zoom out", () => this.zoom(1.6)),
        button("+", "Zoom in", () => this.zoom(1 / 1.6)),
        button("‹", "Earlier", () => this.pan(-0.3)),
        button("›", "Later", () => this.pan(0.3)),
        button("Fit", "Show the whole iteration", () => this.fit()),
        button("All", "Show all that is held", () => this.fitAll()),
        button("Open in Perfetto", "Open ui.perfetto.dev in a new tab and hand it this trace", () => this.perfetto()),
        button("Save trace", "Save this trace as a file for Perfetto", () => save(this.trace(), "trace.json")));
    }

    nameOf(worker, name) {
      return this.runs[0].workers.filter((each) => each[1] === name).length > 1 ? `${name}, worker ${worker}` : name;
    }

    help(id) {
      const keys = html("p", { class: "said keys", id });
      const add = (key, what) => keys.append(html("kbd", {}, key), ` ${what}  `);
      keys.append("Keys: ");
      [["+", "and"], ["−", "zoom,"], ["←", "and"], ["→", "move,"], ["n", "and"], ["p", "next and previous bar,"],
        ["↑", "and"], ["↓", "other lane,"], ["0", "the iteration,"], ["Esc", "none."]].forEach(([key, what]) => add(key, what));
      keys.append("Drag to move, Ctrl and wheel or double click to zoom.");
      return keys;
    }

    key() {
      const list = html("ul", { class: "key" });
      const add = (kinds, text) => {
        const wide = 14 * kinds.length, box = svg("svg", { width: wide, height: 12 });
        kinds.forEach((kind, i) => box.append(svg("rect", { class: kind, x: 14 * i, width: 14, height: 12 })));
        list.append(html("li", {}, box, text));
      };
      add(["forward"], "forward");
      add(["backward"], "backward");
      add(["blocked"], "blocked: the worker waits for parameters");
      const shades = [0, 3, 6, 9, this.all.shades - 1].map((shade) => `layer${shade}`);
      add(shades, "transfers, from the first layer to the last; the one on top arrives next");
      return list;
    }

    // What is shown below each other: a run, a worker of it, and the moment that is 0 on the axis.
    rows() {
      if (this.isOfOne) {
        const others = this.view === "cases", nameOf = (run) => (others ? `${this.all.cases[run.case].title}, ${run.policy}` : run.policy);
        return (others ? this.comparable : this.runs).map((run) => ({ run, worker: this.worker, name: nameOf(run) }))
          .map((row) => ({ ...row, place: row.run.workers.findIndex(([worker]) => worker === row.worker) }))
          .filter(({ run, place }) => place >= 0 && run.first <= this.iteration && this.iteration < run.first + run.iterations)
          .map((row) => ({ ...row, origin: this.startOf(row.run, row.place) }));
      }
      const run = this.runs[+this.view];
      const origin = Math.min(...run.workers.map((_, place) => this.startOf(run, place)));
      return run.workers.map(([worker, name], place) => ({ run, worker, place, origin, name: this.nameOf(worker, name) }));
    }

    // Whether one worker is shown, in several runs.
    get isOfOne() {
      return this.view === "policies" || this.view === "cases";
    }

    startOf(run, place) {
      return run.data[place].forward.start[(this.iteration - run.first) * run.layers + run.layers - 1];
    }

    endOf(run, place) {
      return run.data[place].forward.end[(this.iteration - run.first + 1) * run.layers + run.layers - 1];
    }

    fit() {
      const longest = Math.max(...this.rows().map((row) => this.endOf(row.run, row.place) - row.origin));
      this.look(0, longest * 1.01);
    }

    fitAll() {
      const [least, most] = this.limits();
      this.look(least, most);
    }

    limits() {
      let least = 0, most = 1;
      for (const { run, place, origin } of this.rows()) {
        least = Math.min(least, run.data[place].forward.start[0] - origin);
        most = Math.max(most, run.data[place].forward.end.at(-1) - origin);
      }
      const spare = (most - least) * 0.01;
      return [least - spare, most + spare];
    }

    look(from, to) {
      const [least, most] = this.limits();
      const length = Math.min(Math.max(to - from, 20), most - least);
      this.from = Math.min(Math.max(from, least), most - length);
      this.to = this.from + length;
      this.draw();
    }

    zoom(factor, about = 0.5) {
      const length = this.to - this.from, centre = this.from + about * length;
      this.look(centre - about * length * factor, centre + (1 - about) * length * factor);
    }

    pan(part) {
      const by = part * (this.to - this.from);
      this.look(this.from + by, this.to + by);
    }

    // --- drawing

    draw() {
      if (this.waiting) return;
      this.waiting = true;
      requestAnimationFrame(() => { this.waiting = false; this.drawNow(); });
    }

    drawNow() {
      const width = Math.floor(this.drawing.clientWidth || this.stage.clientWidth) - GUTTER - EDGE;
      if (width < 40) return;
      this.width = width;
      this.scale = width / (this.to - this.from);
      this.narrow = 0;
      this.layout();
      const { scrollTop, clientHeight } = this.lanes, printing = this.printing;
      const parts = [];
      for (const lane of this.placed) {
        const seen = printing || (lane.y + lane.height >= scrollTop - 80 && lane.y <= scrollTop + Math.max(clientHeight, 900));
        if (seen) this.drawLane(lane, parts);
      }
      this.drawing.setAttribute("height", this.height);
      this.drawing.replaceChildren(...parts);
      this.drawAxis();
      // Paper is narrower or wider than the screen: there, drawings are scaled.
      for (const [drawing, height] of [[this.drawing, this.height], [this.axis, AXIS]]) {
        if (printing) drawing.setAttribute("viewBox", `0 0 ${width + GUTTER + EDGE} ${height}`);
        else drawing.removeAttribute("viewBox");
      }
      this.showFocus();
      this.tell();
    }

    layout() {
      const rows = this.rows(), dense = !this.isOfOne && rows.length > 6;
      let y = dense ? 4 : 0;
      this.placed = [];
      for (const row of rows) {
        if (!dense) y += 20;
        const top = y;
        const add = (transfers, name, height) => {
          this.placed.push({ row, transfers, name, y, height, top, isFirst: transfers === null, dense });
          y += height + (dense ? 1 : 3);
        };
        add(null, "compute", dense ? 12 : 20);
        for (const transfers of row.run.data[row.place].transfers) {
          if (transfers.count || !dense) add(transfers, this.all.kinds[transfers.kind], dense ? 6 : 14);
        }
        y += dense ? 5 : 8;
      }
      this.height = y;
    }

    drawLane(lane, parts) {
      const { row, y, height } = lane;
      if (lane.isFirst && !lane.dense) {
        const blocked = this.blockedIn(row);
        const who = this.isOfOne ? `${row.name}: worker ${this.workerName(row)}` : row.name;
        const text = `${who}, blocked for ${this.time(blocked)} in iteration ${this.iteration}`;
        parts.push(svg("text", { x: 4, y: y - 6, class: "row-name" }, text));
      }
      if (!lane.dense || lane.isFirst) {
        const name = lane.dense ? cut(row.name, 9) : lane.name;
        parts.push(svg("text", { x: GUTTER - 6, y: y + height / 2 + 4, "text-anchor": "end" }, name));
      }
      parts.push(svg("rect", { class: "track", x: GUTTER, y, width: this.width, height }));
      lane.isFirst ? this.drawCompute(lane, parts) : this.drawTransfers(lane, parts);
    }

    workerName(row) {
      return this.nameOf(row.worker, row.run.workers[row.place][1]);
    }

    blockedIn(row) {
      // Waits of a backward pass and of the next forward pass count for the iteration of the backward pass.
      return computed(row.run, row.place).reduce((sum, each) => {
        const iteration = each.kind === BLOCKED ? each.iteration - 1 : each.iteration;
        return each.kind >= BLOCKED && iteration === this.iteration ? sum + each.end - each.start : sum;
      }, 0);
    }

    // Every column of pixels takes the colour of what is there; so much as is narrower is counted, and told.
    drawCompute(lane, parts) {
      const { row, y, height } = lane, columns = new Int8Array(this.width).fill(-1), labels = [], edges = [];
      const blocked = [];
      for (const each of computed(row.run, row.place)) {
        const x0 = (each.start - row.origin - this.from) * this.scale, x1 = (each.end - row.origin - this.from) * this.scale;
        if (x1 < 0 || x0 > this.width) continue;
        if (x1 - x0 < 1) this.narrow++;
        if (each.kind >= BLOCKED) { blocked.push([x0, x1]); continue; }
        columns.fill(each.kind, Math.max(0, Math.round(x0)), Math.max(0, Math.round(x1)));
        if (x1 - x0 > 5 && x0 > 0) edges.push(`M${(GUTTER + x0).toFixed(1)} ${y}v${height}`);
        if (x1 - x0 > 34 && !lane.dense) labels.push([x0, x1, this.names[each.layer], each.kind === BACKWARD ? "light" : ""]);
      }
      // What stands still is seen however short it is.
      for (const [x0, x1] of blocked) {
        const from = Math.max(0, Math.round(x0));
        columns.fill(BLOCKED, from, Math.max(from + 1, Math.round(x1)));
      }
      this.paint(columns, y, height, (value) => COMPUTE[value], parts);
      if (edges.length) parts.push(svg("path", { class: "edge", d: edges.join("") }));
      this.label(labels, y, height, parts);
    }

    drawTransfers(lane, parts) {
      const { row, y, height, transfers } = lane, columns = new Int32Array(this.width).fill(-1), labels = [];
      const shift = row.origin + this.from;
      // Those that arrive last lie at the bottom, so that what is seen is what arrives next.
      transfers.order ??= Array.from(transfers.end.keys()).sort((a, b) => transfers.end[b] - transfers.end[a]);
      for (const i of transfers.order) {
        const x0 = (transfers.start[i] - shift) * this.scale, x1 = (transfers.end[i] - shift) * this.scale;
        if (x1 < 0 || x0 > this.width) continue;
        if (x1 - x0 < 1) this.narrow++;
        columns.fill(i, Math.max(0, Math.round(x0)), Math.max(0, Math.round(x1)));
      }
      const most = Math.max(1, this.names.length - 1);
      const shade = (i) => Math.round(transfers.layer[i] * (this.all.shades - 1) / most);
      const shades = columns.map((i) => (i < 0 ? -1 : shade(i)));
      this.paint(shades, y, height, (value) => `layer${value}`, parts);
      if (!lane.dense) {
        for (let x = 0, start = 0; x <= this.width; x++) {
          if (x < this.width && columns[x] === columns[start]) continue;
          const i = columns[start];
          if (i >= 0 && x - start > 40) labels.push([start, x, this.names[transfers.layer[i]], `on-layer${shade(i)}`]);
          start = x;
        }
        this.label(labels, y, height, parts);
      }
    }

    paint(columns, y, height, classOf, parts) {
      const paths = new Map();
      for (let x = 0, start = 0; x <= columns.length; x++) {
        if (x < columns.length && columns[x] === columns[start]) continue;
        if (columns[start] >= 0) {
          const path = `M${GUTTER + start} ${y}h${x - start}v${height}h${start - x}z`;
          paths.set(columns[start], (paths.get(columns[start]) || "") + path);
        }
        start = x;
      }
      for (const [value, d] of paths) parts.push(svg("path", { class: classOf(value), d }));
    }

    label(labels, y, height, parts) {
      for (const [x0, x1, text, colour] of labels) {
        const from = Math.max(0, x0), room = Math.floor((Math.min(this.width, x1) - from - 6) / 5.6);
        if (room < 3) continue;
        const place = { x: GUTTER + from + 3, y: y + height / 2 + 3.5, class: `on-bar ${colour}` };
        parts.push(svg("text", place, cut(text, room)));
      }
    }

    drawAxis() {
      const length = this.to - this.from, unit = this.all.quantum_ps / 1e9, rough = length * unit / Math.max(2, this.width / 110);
      const power = 10 ** Math.floor(Math.log10(rough));
      const step = [1, 2, 5, 10].find((each) => each * power >= rough) * power;
      const parts = [svg("text", { x: 4, y: 15 }, "ms")], decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
      for (let i = Math.ceil(this.from * unit / step); i * step <= this.to * unit; i++) {
        const x = GUTTER + (i * step / unit - this.from) * this.scale;
        parts.push(svg("line", { class: "tick", x1: x, x2: x, y1: 17, y2: AXIS }));
        parts.push(svg("text", { x, y: 14, "text-anchor": "middle" }, (i * step).toFixed(decimals)));
      }
      this.axis.replaceChildren(...parts);
    }

    tell() {
      const run = this.runs[0], parts = [];
      parts.push(`0 is when ${this.isOfOne ? "the worker" : "the first worker"} began the last forward layer of iteration ${this.iteration}.`);
      if (this.narrow) parts.push(`${this.narrow} bars narrower than a pixel are merged with their neighbours: zoom in to see them.`);
      const fewer = this.runs.filter((each) => each.iterations < each.of_iterations || each.workers.length < each.of_workers);
      if (fewer.length) {
        const last = run.first + run.iterations - 1;
        parts.push(`To stay small this file holds iterations ${run.first} to ${last} of 0 to ${run.of_iterations - 1} and ${run.workers.length} of ${run.of_workers} workers; all numbers above are of all.`);
      }
      if (this.runs.some((each) => each.is_merged)) parts.push("What a worker exchanges of a tensor with all hosts is one bar.");
      parts.push(`Times here are rounded to ${this.all.quantum_ps / 1000} ns.`);
      this.said.textContent = parts.join(" ");
    }

    // --- pointing

    time(quanta) {
      const ms = quanta * this.all.quantum_ps / 1e9;
      return Math.abs(ms) < 0.1 && ms ? `${(ms * 1000).toFixed(2)} us` : `${ms.toFixed(3)} ms`;
    }

    eventsOf(lane) {
      if (lane.isFirst) return computed(lane.row.run, lane.row.place);
      const { transfers } = lane;
      return Array.from({ length: transfers.count }, (_, i) => ({ transfer: i, start: transfers.start[i], end: transfers.end[i] }));
    }

    describe(lane, event) {
      const { row } = lane, said = [];
      const when = `from ${this.time(event.start - row.origin)} to ${this.time(event.end - row.origin)}, ${this.time(event.end - event.start)}`;
      if (lane.isFirst) {
        return [`${SAID[event.kind]} ${this.names[event.layer]}`, `${row.run.policy}, ${this.workerName(row)}, iteration ${event.iteration}`, when];
      }
      const { transfers } = lane, i = event.transfer, name = this.all.kinds[transfers.kind];
      const from = this.all.brings_sums.includes(name) ? "from" : "to";
      const peer = row.run.is_merged ? "all hosts" : this.case.hosts[transfers.peer[i]];
      const bytes = transfers.low[i] + transfers.high[i] * 2 ** 30;
      said.push(`${name} ${this.names[transfers.layer[i]]} ${from} ${peer}`);
      said.push(`${row.run.policy}, ${this.workerName(row)}, iteration ${transfers.iteration[i]}`, when);
      said.push(`${size(bytes)} in ${transfers.slices[i]} ${transfers.slices[i] === 1 ? "slice" : "slices"}, queue ${transfers.queue[i]}`);
      said.push(`waited ${this.time(transfers.waited[i])} at the host`);
      let others = -1;
      const middle = event.at ?? event.start;
      for (let k = 0; k < transfers.count; k++) others += transfers.start[k] <= middle && transfers.end[k] > middle;
      if (others > 0) said.push(`${others} more on their way`);
      return said;
    }

    find(x, y) {
      const lane = this.placed.find((each) => y >= each.y && y < each.y + each.height);
      if (!lane || x < GUTTER) return null;
      const at = this.from + (x - GUTTER) / this.scale + lane.row.origin, slack = 1 / this.scale;
      let best = null;
      for (const event of this.eventsOf(lane)) {
        const waits = event.kind >= BLOCKED ? slack : 0;
        if (event.start - waits <= at && event.end + waits > at && (!best || event.end < best.end)) best = event;
      }
      return best && { lane, event: { ...best, at } };
    }

    choose(found, speaks) {
      this.focus = found && { row: found.lane.row.name, name: found.lane.name, event: found.event };
      this.showFocus();
      if (speaks) this.live.textContent = found ? this.describe(found.lane, found.event).join("; ") : "";
    }

    laneOfFocus() {
      return this.focus && this.placed.find((lane) => lane.row.name === this.focus.row && lane.name === this.focus.name);
    }

    showFocus() {
      this.drawing.querySelector(".chosen")?.remove();
      const lane = this.laneOfFocus();
      this.tip.hidden = !lane;
      if (!lane) return;
      const { event } = this.focus, left = (event.start - lane.row.origin - this.from) * this.scale;
      const right = (event.end - lane.row.origin - this.from) * this.scale;
      const x0 = Math.max(0, Math.min(left, this.width)), x1 = Math.max(0, Math.min(right, this.width));
      this.drawing.append(svg("rect", { class: "chosen", x: GUTTER + x0, y: lane.y - 1, width: Math.max(2, x1 - x0), height: lane.height + 2 }));
      const [first, ...rest] = this.describe(lane, event);
      this.tip.replaceChildren(html("b", {}, first), ...rest.map((line) => html("div", {}, line)));
      const room = this.stage.clientWidth - this.tip.offsetWidth - 6;
      this.tip.style.left = `${Math.max(4, Math.min(GUTTER + x0, room))}px`;
      this.tip.style.top = `${AXIS + lane.y + lane.height + 8 - this.lanes.scrollTop}px`;
    }

    step(by) {
      const lane = this.laneOfFocus() || this.placed[0], events = this.eventsOf(lane).sort((a, b) => a.start - b.start);
      if (!events.length) return;
      const seen = this.from + lane.row.origin;
      let index = this.focus ? events.findIndex((each) => each.start === this.focus.event.start && each.end === this.focus.event.end && each.layer === this.focus.event.layer && each.transfer === this.focus.event.transfer) : -1;
      index = index < 0 ? events.findIndex((each) => each.end > seen) : index + by;
      this.reach({ lane, event: events[Math.min(Math.max(index, 0), events.length - 1)] });
    }

    move(by) {
      const lane = this.laneOfFocus(), index = lane ? this.placed.indexOf(lane) + by : 0;
      const next = this.placed[Math.min(Math.max(index, 0), this.placed.length - 1)];
      const at = (this.focus ? this.focus.event.start - lane.row.origin : this.from) + next.row.origin;
      const events = this.eventsOf(next).sort((a, b) => a.start - b.start);
      if (events.length) this.reach({ lane: next, event: events.find((each) => each.end > at) || events.at(-1) });
    }

    // Choose a bar, and bring it into sight.
    reach(found) {
      const { lane, event } = found, start = event.start - lane.row.origin, length = this.to - this.from;
      if (start < this.from || start > this.to) this.look(start - length / 4, start + 3 * length / 4);
      if (lane.y < this.lanes.scrollTop || lane.y + 40 > this.lanes.scrollTop + this.lanes.clientHeight) this.lanes.scrollTop = lane.y - 60;
      this.choose(found, true);
    }

    listen() {
      const { stage, lanes } = this;
      const placeOf = (event) => {
        const box = this.drawing.getBoundingClientRect();
        return [event.clientX - box.left, event.clientY - box.top];
      };
      let held = null;
      lanes.addEventListener("pointerdown", (event) => {
        held = { x: event.clientX, from: this.from, to: this.to };
        lanes.setPointerCapture(event.pointerId);
      });
      lanes.addEventListener("pointermove", (event) => {
        if (held && Math.abs(event.clientX - held.x) > 3) {
          const by = (held.x - event.clientX) / this.scale;
          this.look(held.from + by, held.to + by);
        } else if (!held) this.choose(this.find(...placeOf(event)), false);
      });
      lanes.addEventListener("pointerup", (event) => {
        if (held && Math.abs(event.clientX - held.x) <= 3) this.choose(this.find(...placeOf(event)), true);
        held = null;
      });
      lanes.addEventListener("pointercancel", () => { held = null; });
      lanes.addEventListener("pointerleave", () => { if (document.activeElement !== stage) this.choose(null, false); });
      lanes.addEventListener("scroll", () => this.draw());
      const about = (event) => (placeOf(event)[0] - GUTTER) / this.width;
      lanes.addEventListener("dblclick", (event) => this.zoom(0.4, about(event)));
      stage.addEventListener("wheel", (event) => {
        if (!event.ctrlKey && !event.metaKey) return;
        event.preventDefault();
        this.zoom(event.deltaY > 0 ? 1.25 : 0.8, Math.min(Math.max(about(event), 0), 1));
      }, { passive: false });
      const keys = {
        "+": () => this.zoom(1 / 1.6), "=": () => this.zoom(1 / 1.6), "-": () => this.zoom(1.6), "0": () => this.fit(),
        ArrowLeft: () => this.pan(-0.15), ArrowRight: () => this.pan(0.15), ArrowUp: () => this.move(-1), ArrowDown: () => this.move(1),
        n: () => this.step(1), p: () => this.step(-1), Escape: () => this.choose(null, true),
      };
      stage.addEventListener("keydown", (event) => {
        if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
        event.preventDefault();
        keys[event.key]();
      });
      addEventListener("beforeprint", () => { this.printing = true; this.focus = null; this.drawNow(); });
      addEventListener("afterprint", () => { this.printing = false; this.drawNow(); });
    }

    // --- for Perfetto

    // The trace in Chrome's trace-event format: what this timeline holds, a process for every worker and policy.
    trace() {
      const events = [], unit = this.all.quantum_ps / 1e6;
      let pid = 0;
      for (const run of this.runs) {
        run.workers.forEach(([worker, name], place) => {
          pid++;
          const meta = (what, tid, text) => events.push({ name: what, ph: "M", ts: 0, pid, tid, args: { name: text } });
          const put = (tid, each, text, cat, args) => events.push({ name: text, cat, ph: "X", ts: each.start * unit, dur: (each.end - each.start) * unit, pid, tid, args });
          meta("process_name", 0, `${run.policy} · ${this.nameOf(worker, name)}`);
          meta("thread_name", 1, "compute");
          for (const each of computed(run, place)) {
            put(1, each, `${SAID[each.kind]} ${this.names[each.layer]}`, COMPUTE[each.kind], { iteration: each.iteration, layer: each.layer });
          }
          let tid = 1;
          for (const transfers of run.data[place].transfers) {
            const kind = this.all.kinds[transfers.kind], free = [], first = tid;
            for (let i = 0; i < transfers.count; i++) {
              // Bars of one track must not overlap: the first track that is free takes the next one.
              let track = free.findIndex((end) => end <= transfers.start[i]);
              if (track < 0) { track = free.length; meta("thread_name", first + 1 + track, `${kind} ${track + 1}`); }
              free[track] = transfers.end[i];
              tid = Math.max(tid, first + 1 + track);
              const args = { iteration: transfers.iteration[i], layer: transfers.layer[i], ...(run.is_merged ? {} : { peer: this.case.hosts[transfers.peer[i]] }), bytes: transfers.low[i] + transfers.high[i] * 2 ** 30, queue: transfers.queue[i], slices: transfers.slices[i] };
              put(first + 1 + track, { start: transfers.start[i], end: transfers.end[i] }, `${kind} ${this.names[transfers.layer[i]]}`, kind, args);
            }
          }
        });
      }
      return { traceEvents: events, displayTimeUnit: "ms", otherData: { title: this.case.title } };
    }

    // Perfetto says PONG to our PING once it is ready, and takes a trace then.
    perfetto() {
      const opened = window.open(PERFETTO);
      if (!opened) {
        this.live.textContent = this.said.textContent = "The browser did not open a tab for Perfetto; save the trace and open it there.";
        return;
      }
      const asks = setInterval(() => opened.postMessage("PING", PERFETTO), 250);
      const answered = (event) => {
        if (event.source !== opened || event.origin !== PERFETTO || event.data !== "PONG") return;
        clearInterval(asks);
        removeEventListener("message", answered);
        const buffer = new TextEncoder().encode(JSON.stringify(this.trace())).buffer;
        opened.postMessage({ perfetto: { buffer, title: this.case.title } }, PERFETTO);
      };
      addEventListener("message", answered);
      setTimeout(() => clearInterval(asks), 60000);
    }
  }

  function cut(text, most) {
    return text.length <= most ? text : `${text.slice(0, Math.max(1, most - 1))}…`;
  }

  function size(bytes) {
    const power = bytes >= 1e9 ? 3 : bytes >= 1e6 ? 2 : bytes >= 1e3 ? 1 : 0;
    return `${+(bytes / 1000 ** power).toPrecision(4)} ${["bytes", "KB", "MB", "GB"][power]}`;
  }

  function save(value, name) {
    const link = html("a", { download: name });
    link.href = URL.createObjectURL(new Blob([JSON.stringify(value)], { type: "application/json" }));
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  for (const button of document.querySelectorAll("button[data-save]")) {
    button.addEventListener("click", () => save(block(button.dataset.save), "results.json"));
  }
  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((each) => { each.open = true; }));

  async function start() {
    const all = block("timeline-header"), read = reader(await unpack(block("timeline-stream")));
    for (const run of all.runs) readRun(run, all.cases[run.case].layers[run.job].length, read);
    for (const place of document.querySelectorAll(".timeline")) place.timeline = new Timeline(place, all);
    document.documentElement.dataset.ready = String(Math.round(performance.now()));
  }

  start().catch((error) => {
    for (const place of document.querySelectorAll(".timeline")) {
      place.append(html("p", { class: "said" }, `The timeline cannot be drawn by this browser: ${error.message}`));
    }
    document.documentElement.dataset.failed = error.message;
  });
})();

"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const tip = document.getElementById("tip");
  const hidden = new Set();
  const log = { x: false, y: data.log };
  const LEFT = 42, RIGHT = 10, TOP = 8, BOTTOM = 24;

  function svg(parent, name, attributes = {}, text) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  }

  function html(parent, name, text) {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  }

  // ---- numbers

  function precise(value, digits = 4) {
    if (value === 0 || (Math.abs(value) >= 1e-4 && Math.abs(value) < 1e6)) {
      return String(Number(value.toPrecision(digits)));
    }
    return value.toExponential(digits - 2);
  }

  // as many digits as the interval warrants
  function interval(mean, half) {
    if (!half || Math.abs(mean) >= 1e6 || half < 1e-6) return precise(mean) + (half ? ` ± ${precise(half, 2)}` : "");
    const decimals = Math.max(0, 1 - Math.floor(Math.log10(half)));
    return `${mean.toFixed(decimals)} ± ${half.toFixed(decimals)}`;
  }

  function short(value) {
    const size = Math.abs(value);
    if (size >= 1e6) return `${Number((value / 1e6).toPrecision(3))}M`;
    if (size >= 1e4) return `${Number((value / 1e3).toPrecision(3))}k`;
    if (size > 0 && size < 1e-3) return value.toExponential().replace(/^(\d\.\d)\d+/, "$1");
    return String(Number(value.toPrecision(3)));
  }

  const grouped = value => Number.isInteger(value) ? value.toLocaleString("en") : precise(value);

  function linearTicks(low, high, count) {
    const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map(factor => factor * power).find(each => each >= raw * 0.999);
    const ticks = [];
    for (let at = Math.ceil(low / step - 1e-9); at * step <= high * (1 + 1e-9); at++) ticks.push(at * step);
    return ticks;
  }

  function logTicks(low, high, count) {
    const decades = Math.log10(high / low);
    if (decades < 0.45) return linearTicks(low, high, count);
    const factors = decades < 1.1 ? [1, 2, 3, 5] : decades < 2.2 ? [1, 2, 5] : decades < 3 ? [1, 3] : [1];
    const every = Math.max(1, Math.ceil(decades / count)), ticks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
      if (factors.length === 1 && power % every) continue;
      for (const factor of factors) {
        const tick = Number(`${factor}e${power}`);
        if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
      }
    }
    return ticks;
  }

  function scale([low, high], logarithmic, from, to) {
    const turn = logarithmic ? Math.log : value => value;
    const start = turn(low), span = turn(high) - start || 1;
    // what is not positive has no place on a logarithmic axis: it leaves by the lower edge
    return value => logarithmic && value <= 0 ? from - 10 * (to - from) : from + (to - from) * (turn(value) - start) / span;
  }

  // ---- axes: one for all panels of a figure, with room for the lines that are shown

  const shown = lines => lines.filter(line => !hidden.has(line.style));

  // as `joined` in ranges.py
  function joined(reaches) {
    const low = Math.min(...reaches.map(([low]) => low)), high = Math.max(...reaches.map(([, high]) => high));
    const flat = Math.min(...reaches.map(reach => reach[2])), steep = Math.max(...reaches.map(reach => reach[3]));
    const pad = 0.05 * (steep - flat) || 0.1 * Math.abs(steep) || 1;
    return {
      linear: [0 <= flat && flat < 0.4 * steep ? 0 : flat - pad, steep + pad],
      log: low > 0 ? [0.9 * low, 1.1 * high] : null,
    };
  }

  // dots far worse than most would press the others together: they stand at the edge instead
  function ofDots(lines) {
    const dots = lines.flatMap(line => line.y.map((y, at) => [y, line.half[at] ?? 0])).filter(([y]) => y !== null);
    const values = dots.map(([y]) => y).sort((a, b) => a - b), middle = values[Math.floor(values.length / 2)];
    const edge = values[0] > 0 ? middle * (data.lower ? 2 : 0.5) : (data.lower ? Infinity : -Infinity);
    const inside = dots.filter(([y]) => data.lower ? y <= edge : y >= edge);
    const ends = inside.flatMap(([y, half]) => [y - half, y + half]);
    const low = Math.min(...ends), high = Math.max(...ends);
    const least = low > 0 ? low : Math.min(...inside.map(([y]) => y));
    return [Math.max(least, data.lower ? -Infinity : edge / 1.2), Math.min(high, data.lower ? edge * 1.2 : Infinity)];
  }

  function ranges(figure) {
    const lines = figure.panels.flatMap(panel => shown(panel.lines));
    const values = lines.flatMap(line => line.y).filter(y => y !== null);
    if (!values.length) return figure;
    if (figure.kind === "headline") {
      const [low, high] = ofDots(lines);
      return joined([[low, high, low, high]]);
    }
    const reaches = lines.map(line => line.reach).filter(reach => reach);
    const low = Math.min(...values), high = Math.max(...values);
    return joined(reaches.length ? reaches : [[low, high, low, high]]);
  }

  // ---- one panel

  class Plot {
    constructor(host) {
      this.host = host;
      this.figure = data.figures[host.dataset.figure];
      this.lines = this.figure.panels[host.dataset.panel].lines;
      this.marks = [...new Set(this.lines.flatMap(line => line.x))].sort((a, b) => a - b);
      this.at = null;
      host.addEventListener("pointermove", event => this.point(event));
      host.addEventListener("pointerdown", event => this.point(event));
      host.addEventListener("pointerleave", () => this.hover(null));
      host.addEventListener("blur", () => this.hover(null));
      host.addEventListener("keydown", event => this.press(event));
    }

    get visible() { return shown(this.lines); }
    get height() { return this.figure.kind === "headline" ? 290 : 230; }

    axes() {
      const { kind, ticks } = this.figure, sensitivity = kind === "sensitivity";
      const range = ranges(this.figure), logY = log.y && range.log !== null, rangeY = logY ? range.log : range.linear;
      const bottom = this.height - BOTTOM, y = scale(rangeY, logY, bottom, TOP);
      const vertical = { bottom, y, rangeY, ticksY: (logY ? logTicks : linearTicks)(...rangeY, 5) };
      if (kind === "headline") {
        const x = scale([-0.5, ticks.length - 0.5], false, LEFT, this.width - RIGHT);
        return { ...vertical, logX: false, x, ticksX: ticks };
      }
      const places = sensitivity ? ticks.map(([place]) => place) : this.marks;
      const logX = sensitivity || (log.x && places.at(-1) > 0), positive = logX ? places.filter(x => x > 0) : places;
      let low = positive[0], high = positive.at(-1);
      if (!sensitivity && !logX && positive.length > 1) low = Math.min(low, 0);
      if (low === high) [low, high] = logX ? [low / 2, high * 2] : [low - 1, high + 1];
      const pad = sensitivity ? (high / low) ** 0.04 : 1, rangeX = [low / pad, high * pad];
      return {
        ...vertical, logX, x: scale(rangeX, logX, LEFT, this.width - RIGHT),
        ticksX: sensitivity ? this.thinned(rangeX) : (logX ? logTicks : linearTicks)(...rangeX, 4).map(x => [x, short(x)]),
      };
    }

    // as many of the tried values as have room for their labels
    thinned(rangeX) {
      const place = scale(rangeX, true, LEFT, this.width - RIGHT);
      let last = -Infinity;
      return this.figure.ticks.filter(([x]) => {
        const fits = place(x) - last >= 42;
        if (fits) last = place(x);
        return fits;
      });
    }

    draw() {
      this.width = Math.round(this.host.clientWidth);
      if (!this.width) return;
      const axes = this.map = this.axes();
      this.host.replaceChildren();
      const root = svg(this.host, "svg", { viewBox: `0 0 ${this.width} ${this.height}`, "aria-hidden": "true" });
      for (const y of axes.ticksY) {
        svg(root, "line", { class: "grid", x1: LEFT, x2: this.width - RIGHT, y1: axes.y(y), y2: axes.y(y) });
        svg(root, "text", { class: "tick-y", x: LEFT - 5, y: axes.y(y) + 4, "text-anchor": "end" }, short(y));
      }
      for (const [x, label] of axes.ticksX) {
        const last = axes.x(x) > this.width - RIGHT - 12 && this.figure.kind !== "headline";
        svg(root, "line", { class: "frame", x1: axes.x(x), x2: axes.x(x), y1: axes.bottom, y2: axes.bottom + 4 });
        svg(root, "text", {
          class: "tick-x", x: last ? this.width - 1 : axes.x(x), y: this.height - 6, "text-anchor": last ? "end" : "middle",
        }, label);
      }
      svg(root, "line", { class: "frame", x1: LEFT, x2: this.width - RIGHT, y1: axes.bottom, y2: axes.bottom });
      // an inner svg clips what leaves the axes
      const inside = svg(root, "svg", {
        x: LEFT, y: TOP, width: this.width - LEFT - RIGHT, height: axes.bottom - TOP,
        viewBox: `${LEFT} ${TOP} ${this.width - LEFT - RIGHT} ${axes.bottom - TOP}`,
      });
      const groups = this.visible.map(line =>
        [line, svg(inside, "g", { class: `c${line.style}`, "data-style": line.style })]);
      if (this.figure.kind === "headline") {
        for (const [at] of this.figure.ticks.slice(1)) {
          svg(inside, "line", { class: "grid", x1: axes.x(at - 0.5), x2: axes.x(at - 0.5), y1: TOP, y2: axes.bottom });
        }
        groups.forEach(([line, group], order) => this.dots(group, line, order, groups.length));
      } else {
        for (const [line, group] of groups) this.band(group, line);
        groups.forEach(([line, group], order) => this.line(group, line, order));
      }
      this.over = svg(root, "g");
      this.notes();
    }

    // runs of neighbouring points that have a place on both axes
    pieces(line, wanted) {
      const pieces = [[]];
      line.x.forEach((x, at) => {
        if (line.y[at] !== null && wanted(at) && !(this.map.logX && x <= 0)) pieces.at(-1).push(at);
        else if (pieces.at(-1).length) pieces.push([]);
      });
      return pieces.filter(piece => piece.length);
    }

    path(line, piece, shift) {
      // far outside of the clip a coordinate is only a direction, and browsers round large ones badly
      const bounded = y => Math.max(-2000, Math.min(2000, y)).toFixed(1);
      return piece.map(at => `${this.map.x(line.x[at]).toFixed(1)} ${bounded(this.map.y(shift(at)))}`);
    }

    band(group, line) {
      for (const piece of this.pieces(line, at => line.half[at] !== null)) {
        const up = this.path(line, piece, at => line.y[at] + line.half[at]);
        const down = this.path(line, piece, at => line.y[at] - line.half[at]).reverse();
        if (piece.length > 1) svg(group, "path", { class: "band", d: `M${[...up, ...down].join("L")}Z` });
      }
    }

    // the methods of a case stand side by side: a dot and its interval, or a mark at the edge
    dots(group, line, order, count) {
      const { x, y, bottom, rangeY } = this.map, width = (x(1) - x(0)) * 0.86;
      const edge = data.lower ? TOP + 7 : bottom - 7, up = data.lower ? -1 : 1;
      line.x.forEach((place, at) => {
        const middle = x(place) + ((order + 0.5) / count - 0.5) * Math.min(width, 26 * count), value = line.y[at];
        if (value === null) {
          svg(group, "path", { class: "stop", d: `M${middle - 4} ${edge - 4}l8 8m0 -8l-8 8` });
        } else if (value > rangeY[1] || value < rangeY[0]) {
          svg(group, "path", { class: "dot off", d: `M${middle - 5} ${edge - 4 * up}h10l-5 ${9 * up}z` });
        } else {
          const half = line.half[at] ?? 0, clip = pixel => Math.max(TOP, Math.min(bottom, pixel));
          const [top, foot] = [clip(y(value + half)), clip(y(value - half))];
          if (half) svg(group, "line", { class: "bar", x1: middle, x2: middle, y1: top, y2: foot });
          svg(group, "circle", { class: "dot", cx: middle, cy: y(value), r: 4 });
        }
      });
    }

    line(group, line, order) {
      const pieces = this.pieces(line, () => true);
      for (const piece of pieces) {
        const points = this.path(line, piece, at => line.y[at]);
        svg(group, "path", { class: "line", d: `M${points.join("L")}` });
        const dotted = this.figure.kind === "sensitivity" || piece.length === 1;
        if (dotted) for (const at of piece) this.dot(group, line, at, 3);
      }
      const cross = (x, y) => svg(group, "path", { class: "stop", d: `M${x - 4} ${y - 4}l8 8m0 -8l-8 8` });
      if (this.figure.kind === "sensitivity") { // at the foot, where a value diverged
        line.x.forEach((x, at) => line.y[at] === null && cross(this.map.x(x), this.map.bottom - 6 - 9 * order));
        return;
      }
      const last = pieces.at(-1)?.at(-1);
      if (line.diverged && last !== undefined) cross(this.map.x(line.x[last]), this.map.y(line.y[last]));
    }

    dot(group, line, at, radius) {
      const attributes = { class: "dot", cx: this.map.x(line.x[at]), cy: this.map.y(line.y[at]), r: radius };
      if (line.y[at] !== null) svg(group, "circle", attributes);
    }

    // below the picture, where they have room
    notes() {
      if (this.figure.kind !== "curves") return;
      const [low, high] = this.map.rangeY, last = line => line.y.at(-1);
      const off = line => !line.diverged && last(line) !== null && (last(line) < low || last(line) > high);
      for (const [word, is] of [["diverged", line => line.diverged], ["off scale", off]]) {
        const names = this.visible.filter(is).map(line => data.styles[line.style].label);
        if (names.length) html(this.host, "p", `${names.join(", ")}: ${word}`).className = "remark";
      }
    }

    // ---- values under the pointer

    point(event) {
      if (!this.map) return;
      const box = this.host.getBoundingClientRect(), x = (event.clientX - box.left) * this.width / box.width;
      const marks = this.marks.filter(mark => !this.map.logX || mark > 0);
      const away = mark => Math.abs(this.map.x(mark) - x);
      if (marks.length) this.hover(marks.reduce((a, b) => away(b) < away(a) ? b : a));
    }

    press(event) {
      const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") this.hover(null);
      if (!way) return;
      event.preventDefault();
      const now = this.at === null ? (way > 0 ? -1 : this.marks.length) : this.marks.indexOf(this.at);
      this.hover(this.marks[Math.max(0, Math.min(this.marks.length - 1, now + way))]);
    }

    hover(mark) {
      this.at = mark;
      this.over?.replaceChildren();
      tip.hidden = mark === null || !this.visible.length;
      if (tip.hidden) return;
      const x = this.map.x(mark), exact = this.figure.kind !== "curves";
      const found = this.visible.filter(line => !exact || line.x.includes(mark))
        .map(line => [line, this.nearest(line, mark)]);
      svg(this.over, "line", { class: "guide", x1: x, x2: x, y1: TOP, y2: this.map.bottom });
      for (const [line, at] of found) {
        const y = line.y[at] === null ? -1 : this.map.y(line.y[at]);
        const group = svg(this.over, "g", { class: `c${line.style}` });
        const on = y >= TOP && y <= this.map.bottom && line.x[at] === mark && this.figure.kind !== "headline";
        if (on) this.dot(group, line, at, 3.5);
      }
      this.tell(mark, found);
      this.place(x);
    }

    nearest(line, mark) {
      return line.x.reduce((best, x, at) => Math.abs(x - mark) < Math.abs(line.x[best] - mark) ? at : best, 0);
    }

    tell(mark, found) {
      tip.replaceChildren();
      const label = Object.fromEntries(this.figure.ticks.map(([place, text]) => [place, text]))[mark] ?? grouped(mark);
      html(tip, "b", `${this.figure.x} ${label}`);
      const table = html(tip, "table"), value = ([line, at]) => line.y[at] === null ? Infinity : line.y[at] * (data.lower ? 1 : -1);
      for (const [line, at] of [...found].sort((a, b) => value(a) - value(b))) {
        const row = html(table, "tr");
        row.className = `c${line.style}`;
        const swatch = svg(html(row, "td"), "svg", { width: 22, height: 6 });
        svg(swatch, "line", { x1: 0, x2: 22, y1: 3, y2: 3 });
        html(row, "td", data.styles[line.style].label);
        const elsewhere = line.x[at] === mark ? "" : ` (at ${grouped(line.x[at])})`;
        html(row, "td", (line.y[at] === null ? "diverged" : interval(line.y[at], line.half[at])) + elsewhere);
        html(row, "td", line.settings[line.settings.length > 1 ? at : 0]);
      }
    }

    // beside the guide where there is room, always inside of the window
    place(x) {
      const box = this.host.getBoundingClientRect(), wide = document.documentElement.clientWidth;
      tip.style.left = "0";
      const guide = box.left + x * box.width / this.width, width = tip.offsetWidth;
      const beside = guide + 14 + width <= wide - 8 ? guide + 14 : guide - 14 - width;
      const narrow = beside < 8;
      const left = narrow ? Math.max(8, Math.min(wide - width - 8, guide - width / 2)) : beside;
      const above = box.top - tip.offsetHeight - 6, below = box.bottom + 6;
      const top = narrow ? (above > 0 ? above : below) : Math.max(8, Math.min(box.top, innerHeight - tip.offsetHeight - 8));
      tip.style.left = `${left + scrollX}px`;
      tip.style.top = `${top + scrollY}px`;
    }
  }

  // ---- the page

  const plots = [...document.querySelectorAll(".plot")].map(host => new Plot(host));
  const redraw = () => { tip.hidden = true; for (const plot of plots) plot.draw(); };

  for (const button of document.querySelectorAll(".key")) {
    button.addEventListener("click", () => {
      const style = Number(button.dataset.style);
      if (!hidden.delete(style)) hidden.add(style);
      for (const same of document.querySelectorAll(`.key[data-style="${style}"]`)) {
        same.setAttribute("aria-pressed", String(!hidden.has(style)));
      }
      redraw();
    });
  }
  for (const button of document.querySelectorAll(".switch")) {
    button.addEventListener("click", () => {
      log[button.dataset.axis] = !log[button.dataset.axis];
      button.setAttribute("aria-pressed", String(log[button.dataset.axis]));
      redraw();
    });
  }

  redraw();
  const sizes = new ResizeObserver(() => {
    if (plots.some(plot => plot.width !== Math.round(plot.host.clientWidth))) redraw();
  });
  for (const plot of plots) sizes.observe(plot.host);
})();

(function () {
  "use strict";
  const section = document.currentScript.closest(".cf-landscape");
  const initial = JSON.parse(section.querySelector('script[type="application/json"]').textContent);
  const state = JSON.parse(JSON.stringify(initial));
  const SVG = "http://www.w3.org/2000/svg";
  const FAR = 1e6;

  // ---- The mathematics: the same as closedform.theory.landscape, checked against it by a test ----

  const ACTIVATIONS = {
    relu: { value: (u) => Math.max(u, 0), slope: (u) => (u > 0 ? 1 : 0) },
    tanh: { value: Math.tanh, slope: (u) => 1 - Math.tanh(u) ** 2 },
  };

  function loss(W, theta) {
    const f = ACTIVATIONS[state.activation].value;
    let sum = state.beta * W * W;
    for (let i = 0; i < state.x.length; i++) sum += (state.y[i] - W * f(theta * state.x[i])) ** 2;
    return sum;
  }

  function best(theta) {
    const f = ACTIVATIONS[state.activation].value;
    let cross = 0, scale = state.beta;
    for (let i = 0; i < state.x.length; i++) {
      const phi = f(theta * state.x[i]);
      cross += phi * state.y[i];
      scale += phi * phi;
    }
    return scale > 0 ? cross / scale : 0;
  }

  function gradient(W, theta) {
    const { value, slope } = ACTIVATIONS[state.activation];
    let dW = 2 * state.beta * W, dtheta = 0;
    for (let i = 0; i < state.x.length; i++) {
      const u = theta * state.x[i], phi = value(u), error = W * phi - state.y[i];
      dW += 2 * error * phi;
      dtheta += 2 * error * W * slope(u) * state.x[i];
    }
    return [dW, dtheta];
  }

  function descend(solved) {
    let theta = state.theta, W = solved ? best(theta) : state.W;
    const points = [[theta, W]];
    for (let step = 0; step < state.steps; step++) {
      const [dW, dtheta] = gradient(W, theta);
      theta -= state.lr * dtheta;
      W = solved ? best(theta) : W - state.lr * dW;
      if (!(Math.abs(theta) < FAR && Math.abs(W) < FAR)) break;
      points.push([theta, W]);
    }
    return points;
  }

  // ---- Drawing -----------------------------------------------------------------------------------

  function frame(svg, width, height, range) {
    const left = 52, right = 14, top = 12, bottom = 46;
    const span = [width - left - right, height - top - bottom];
    return {
      svg, range, box: [left, top, span[0], span[1]],
      px: (a) => left + ((a + range) / (2 * range)) * span[0],
      py: (b) => top + ((range - b) / (2 * range)) * span[1],
      // from a pointer event to the picture's units, and to the plot's own
      spot(event) {
        const p = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
        return [p.x, p.y];
      },
      at(event) {
        const [x, y] = this.spot(event);
        return [((x - left) / span[0]) * 2 * range - range, range - ((y - top) / span[1]) * 2 * range];
      },
    };
  }

  function add(parent, name, attributes, text) {
    const element = document.createElementNS(SVG, name);
    for (const key in attributes) element.setAttribute(key, attributes[key]);
    if (text !== undefined) element.textContent = text;
    parent.appendChild(element);
    return element;
  }

  let clips = 0;
  function axes(plot, across, up) {
    const [left, top, width, height] = plot.box;
    const id = "cfl-clip-" + Math.random().toString(36).slice(2) + clips++;
    const clip = add(add(plot.svg, "defs", {}), "clipPath", { id });
    add(clip, "rect", { x: left, y: top, width, height });
    const inner = add(plot.svg, "g", { "clip-path": `url(#${id})` });
    add(plot.svg, "rect", { x: left, y: top, width, height, class: "cfl-axis" });
    for (let k = Math.ceil(-plot.range); k <= plot.range; k++) {
      add(plot.svg, "text", { x: plot.px(k), y: top + height + 20, "text-anchor": "middle" }, k);
      add(plot.svg, "text", { x: left - 8, y: plot.py(k) + 5, "text-anchor": "end" }, k);
    }
    add(plot.svg, "text", { x: left + width / 2, y: top + height + 40, "text-anchor": "middle" }, across);
    add(plot.svg, "text", { x: 14, y: top + height / 2 - 14, "text-anchor": "middle" }, up);
    return inner;
  }

  const round = (v) => Math.round(v * 100) / 100;
  const clamp = (v, limit) => Math.max(-limit, Math.min(limit, v));

  function line(plot, points) {
    return points.map(([a, b], i) =>
      (i ? "L" : "M") + round(plot.px(a)) + " " + round(plot.py(clamp(b, 60)))).join("");
  }

  const REACH = 28; // how far from a point, in the units of the picture, it can be taken hold of

  // One listener for all points of a picture: the nearest one is taken, whichever lies on top.
  function holding(plot) {
    let held = null;
    plot.handles = [];
    plot.svg.addEventListener("pointerdown", (event) => {
      const [x, y] = plot.spot(event);
      let least = REACH;
      held = null;
      for (const one of plot.handles) {
        const [a, b] = one.get(), distance = Math.hypot(plot.px(a) - x, plot.py(b) - y);
        if (distance <= least) [held, least] = [one, distance];
      }
      if (!held) return;
      plot.svg.setPointerCapture(event.pointerId);
      held.group.classList.add("cfl-held");
      event.preventDefault();
      held.group.focus({ preventScroll: true });
    });
    plot.svg.addEventListener("pointermove", (event) => {
      if (held) held.move(...plot.at(event));
    });
    for (const name of ["pointerup", "pointercancel"])
      plot.svg.addEventListener(name, () => {
        if (held) held.group.classList.remove("cfl-held");
        held = null;
      });
  }

  function handle(plot, label, get, set) {
    const group = add(plot.svg, "g", { class: "cfl-handle", tabindex: 0, role: "application" });
    add(group, "circle", { r: REACH, class: "cfl-hit" });
    add(group, "circle", { r: 8, class: "cfl-dot" });
    const move = (a, b) => { set(clamp(a, plot.range), clamp(b, plot.range)); draw(); };
    plot.handles.push({ group, get, move });
    // or a finger would scroll the page instead: `touch-action` is not heeded on parts of an SVG
    group.addEventListener("touchstart", (event) => event.preventDefault(), { passive: false });
    group.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
      if (!step) return;
      event.preventDefault();
      const [a, b] = get(), size = event.shiftKey ? 0.5 : 0.1;
      move(a + size * step[0], b + size * step[1]);
    });
    return () => {
      const [a, b] = get();
      group.setAttribute("transform", `translate(${round(plot.px(a))} ${round(plot.py(b))})`);
      group.setAttribute("aria-label", `${label}: ${a.toFixed(2)}, ${b.toFixed(2)}; arrow keys move it`);
    };
  }

  function colour(name) {
    const hex = getComputedStyle(section).getPropertyValue(name).trim();
    return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  }

  // The loss as an image: bands of equal ratio, darker where it is higher.
  const canvas = document.createElement("canvas");
  canvas.width = 253;
  canvas.height = 195;
  function heat() {
    const context = canvas.getContext("2d"), image = context.createImageData(canvas.width, canvas.height);
    const low = colour("--cfl-low"), high = colour("--cfl-high");
    const values = new Float64Array(canvas.width * canvas.height);
    for (let row = 0, k = 0; row < canvas.height; row++)
      for (let column = 0; column < canvas.width; column++, k++)
        values[k] = Math.log(0.05 + loss(map.range * (1 - (2 * (row + 0.5)) / canvas.height),
                                         map.range * ((2 * (column + 0.5)) / canvas.width - 1)));
    const bottom = values.reduce((a, b) => Math.min(a, b)), top = values.reduce((a, b) => Math.max(a, b));
    for (let k = 0; k < values.length; k++) {
      const share = Math.round(((values[k] - bottom) / (top - bottom || 1)) * 18) / 18;
      for (let c = 0; c < 3; c++) image.data[4 * k + c] = low[c] + (high[c] - low[c]) * share;
      image.data[4 * k + 3] = 255;
    }
    context.putImageData(image, 0, 0);
    picture.setAttribute("href", canvas.toDataURL());
  }

  const map = frame(section.querySelector(".cfl-map"), 560, 440, 3);
  const data = frame(section.querySelector(".cfl-data"), 440, 440, 2);
  holding(map);
  holding(data);

  const inMap = axes(map, "θ", "W");
  const [left, top, width, height] = map.box;
  const picture = add(inMap, "image", { x: left, y: top, width, height, preserveAspectRatio: "none" });
  add(inMap, "path", { class: "cfl-zero", d: line(map, [[0, -3], [0, 3]]) + line(map, [[-3, 0], [3, 0]]) });
  const curve = add(inMap, "path", { class: "cfl-curve" });
  const jump = add(inMap, "path", { class: "cfl-jump" });
  const both = add(inMap, "path", { class: "cfl-both" });
  const along = add(inMap, "path", { class: "cfl-along" });
  const marks = { both: add(inMap, "g", { class: "cfl-marks-both" }), along: add(inMap, "g", { class: "cfl-marks-along" }) };

  const inData = axes(data, "x", "y");
  add(inData, "path", { class: "cfl-zero", d: line(data, [[0, -2], [0, 2]]) + line(data, [[-2, 0], [2, 0]]) });
  const fits = { both: add(inData, "path", { class: "cfl-both" }), along: add(inData, "path", { class: "cfl-along" }) };

  const handles = [handle(map, "start, theta and W", () => [state.theta, state.W], (a, b) => {
    state.theta = a;
    state.W = b;
  })];
  state.x.forEach((_, i) => handles.push(handle(data, `point ${i + 1}, x and y`, () => [state.x[i], state.y[i]], (a, b) => {
    state.x[i] = a;
    state.y[i] = b;
  })));

  function circles(group, points, radius) {
    group.replaceChildren();
    for (const [a, b] of points) add(group, "circle", { cx: round(map.px(a)), cy: round(map.py(clamp(b, 60))), r: radius });
  }

  function fitted(points) {
    const [theta, W] = points[points.length - 1], f = ACTIVATIONS[state.activation].value;
    const grid = Array.from({ length: 161 }, (_, k) => -2 + k / 40);
    return line(data, grid.map((x) => [x, W * f(theta * x)]));
  }

  const number = (v) => (v < FAR ? v.toFixed(4) : "more than a million");

  function status(paths) {
    const end = (points) => loss(points[points.length - 1][1], points[points.length - 1][0]);
    const start = loss(state.W, state.theta), solved = loss(paths.along[0][1], state.theta);
    const gone = (points) => (points.length <= state.steps ? " (it diverged: lower the learning rate)" : "");
    const gap = end(paths.both) - end(paths.along);
    const lower = Math.abs(gap) < 5e-5 ? "Both paths end at the same loss."
      : `${gap > 0 ? "The path along the curve" : "Gradient descent in both"} ends lower.`;
    let text = `${lower} Loss at the start ${number(start)}. One solve of W: ${number(solved)}. After ${state.steps} steps: gradient ` +
      `descent in both ${number(end(paths.both))}${gone(paths.both)}; along the curve ${number(end(paths.along))}` +
      `${gone(paths.along)}. `;
    if (state.activation !== "relu") return text;
    if (paths.along[0][1] === 0)
      text += "For relu on this side of θ = 0 the best W is 0, since the features say nothing of the targets: the loss along " +
        "the curve is constant here.";
    else if (state.beta === 0)
      text += "For relu and β = 0 the loss along the curve depends on the sign of θ only: the first solve arrives, nothing is " +
        "left to descend, and the other branch, better or worse, is out of reach.";
    else
      text += "For relu and β > 0 the loss along the curve falls for ever on this side of θ = 0 as |θ| grows, since a larger θ " +
        "allows a smaller W: there is no minimum.";
    return text;
  }

  const inputs = [...section.querySelectorAll("[data-name]")];

  function draw() {
    const grid = [];
    for (let k = -300; k < 300; k++) grid.push([(k + 0.5) / 100, best((k + 0.5) / 100)]);
    curve.setAttribute("d", line(map, grid.slice(0, 300)) + line(map, grid.slice(300)));
    const paths = { both: descend(false), along: descend(true) };
    both.setAttribute("d", line(map, paths.both));
    along.setAttribute("d", line(map, paths.along));
    jump.setAttribute("d", line(map, [[state.theta, state.W], paths.along[0]]));
    circles(marks.both, paths.both, 3.5);
    circles(marks.along, paths.along, 5.5);
    fits.both.setAttribute("d", fitted(paths.both));
    fits.along.setAttribute("d", fitted(paths.along));
    for (const place of handles) place();
    for (const input of inputs) {
      input.value = state[input.dataset.name];
      const shown = input.parentElement.querySelector("output");
      if (shown) shown.textContent = state[input.dataset.name].toFixed(input.dataset.name === "lr" ? 3 : 2);
    }
    section.querySelector(".cfl-status").textContent = status(paths);
    for (const preset of section.querySelectorAll("[data-preset]")) {
      const wanted = { ...initial, ...JSON.parse(preset.dataset.preset) };
      preset.setAttribute("aria-pressed", String(JSON.stringify(wanted) === JSON.stringify(state)));
    }
    section.cfLandscape = { state, paths, loss, best };
    heat();
  }

  for (const input of inputs)
    input.addEventListener("input", () => {
      state[input.dataset.name] = input.tagName === "SELECT" ? input.value : Number(input.value);
      draw();
    });
  const start = (changes) => () => {
    Object.assign(state, JSON.parse(JSON.stringify(initial)), changes);
    draw();
  };
  section.querySelector(".cfl-reset").addEventListener("click", start({}));
  const presets = [...section.querySelectorAll("[data-preset]")];
  for (const preset of presets) preset.addEventListener("click", start(JSON.parse(preset.dataset.preset)));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", heat);
  new MutationObserver(heat).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  draw();
})();

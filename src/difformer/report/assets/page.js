"use strict";
// Draws the figures beside it in the colours of the page, and the maps. Texts from data reach the page by textContent,
// or by Plotly with every < and & written as entities: Plotly would take them for tags.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const COLOURS = data.colours; // shapes repeat the message where there are more classes than colours
  const SHAPES = ["circle", "square", "diamond", "cross", "x", "triangle-up", "triangle-down", "star"];
  const UNKNOWN = "#9a9a9a";
  const drawn = [];
  const safe = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const short = (text, length = 28) => (text.length > length ? text.slice(0, length - 1) + "…" : text);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const make = (kind, attributes = {}, ...children) => {
    const node = Object.assign(document.createElement(kind), attributes);
    node.append(...children);
    return node;
  };
  const narrow = () => innerWidth < 640;
  const config = { displaylogo: false, responsive: true, modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]] };
  // A layout in the colours of the page.
  const themed = (layout) => {
    const line = { gridcolor: css("--line"), zerolinecolor: css("--line"), linecolor: css("--line") };
    const axes = Object.fromEntries(Object.keys(layout).filter((key) => /^[xy]axis/.test(key)).map((key) => [key, { ...layout[key], ...line }]));
    return { paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: css("--ink"), family: "system-ui, sans-serif", size: 13 }, hoverlabel: { bgcolor: css("--panel"), font: { color: css("--ink") }, bordercolor: css("--line") }, modebar: { bgcolor: "rgba(0,0,0,0)", color: css("--soft"), activecolor: css("--ink") }, ...layout, ...axes };
  };
  for (const [name, figure] of Object.entries(data.figures)) {
    const place = document.getElementById(name);
    if (!place) continue;
    const draw = () => Plotly.react(place, figure.data, themed(figure.layout), config);
    drawn.push(draw);
    draw();
  }

  // A map: points that a slider moves from layer to layer, pairs above a threshold, observed edges, a card.
  function map(found, number) {
    const place = document.getElementById(`map-${number}`);
    const last = found.layers.length - 1;
    let layer = last, colouring = found.colourings[0], least = 0;
    const layerName = make("output", { id: `layer-name-${number}` });
    const slider = make("input", { type: "range", min: 0, max: last, step: 1, value: last, id: `layer-${number}` });
    slider.setAttribute("aria-label", "layer");
    const choice = make("select", { id: `colour-${number}` }, ...found.colourings.map((c, i) => make("option", { value: i, textContent: c.name })));
    const controls = make("div", { className: "controls" }, make("label", {}, "layer", slider, layerName), make("label", {}, "colour", choice));
    const hasPairs = found.pairs.length > 0;
    const threshold = make("input", { type: "range", min: 0, max: 100, step: 1, value: 40, id: `threshold-${number}` });
    const thresholdName = make("output", { id: `threshold-name-${number}` });
    const showPairs = make("input", { type: "checkbox", checked: !found.uniform.length || found.uniform.some((one) => !one), id: `pairs-${number}` });
    const showEdges = make("input", { type: "checkbox", checked: false, id: `edges-${number}` });
    if (hasPairs) controls.append(make("label", {}, showPairs, "latent pairs above", threshold, thresholdName));
    if (found.observed) controls.append(make("label", {}, showEdges, "observed edges"));
    const canvas = make("div", { className: "canvas", id: `canvas-${number}` });
    const card = make("div", { className: "card", id: `card-${number}` }, "Point at an instance.");
    const counts = make("p", { className: "note", id: `counts-${number}` });
    place.append(controls, make("div", { className: "beside" }, canvas, card), counts);

    const pairsNow = () => (hasPairs && layer > 0 ? found.pairs[layer - 1] : null); // the attention that made this layer
    const strongest = () => { const p = pairsNow(); return p && p.weight.length ? [p.weight[p.weight.length - 1], p.weight[0]] : [0, 0]; };
    const segments = (source, target, keep) => {
      const x = [], y = [];
      for (let i = 0; i < source.length; i++) {
        if (keep && !keep(i)) continue;
        x.push(found.x[layer][source[i]], found.x[layer][target[i]], null);
        y.push(found.y[layer][source[i]], found.y[layer][target[i]], null);
      }
      return { x, y };
    };
    function lines() {
      const p = pairsNow(), on = p && showPairs.checked;
      const above = (i) => p.weight[i] >= least;
      const edges = found.observed && showEdges.checked ? segments(found.observed.source, found.observed.target) : { x: [], y: [] };
      const seen = on ? segments(p.source, p.target, (i) => above(i) && p.observed[i]) : { x: [], y: [] };
      const fresh = on ? segments(p.source, p.target, (i) => above(i) && !p.observed[i]) : { x: [], y: [] };
      const style = (name, xy, colour, width, dash) => ({ ...xy, name, mode: "lines", hoverinfo: "skip", line: { color: colour, width, dash }, opacity: 0.7, showlegend: xy.x.length > 0 });
      return [style("observed edge", edges, css("--soft"), 0.7, "solid"), style("latent pair", fresh, css("--ink"), 1, "solid"), style("latent pair that is an observed edge", seen, "#009E73", 2.4, "solid")];
    }
    function points() {
      const at = (rows, name, marker) => ({ x: rows.map((i) => found.x[layer][i]), y: rows.map((i) => found.y[layer][i]), customdata: rows, name: safe(short(name)), mode: "markers", hoverinfo: "none", marker: { size: 7, line: { width: 0.5, color: css("--back") }, ...marker } });
      const all = found.titles.map((_, i) => i);
      if (colouring.kind === "value") return [at(all, colouring.name, { color: colouring.values, colorscale: "Cividis", showscale: true, colorbar: { title: { text: safe(colouring.name) } } })];
      const traces = [];
      const groups = new Map();
      for (const i of all) { const c = colouring.values[i]; if (!groups.has(c)) groups.set(c, []); groups.get(c).push(i); }
      for (const c of [...groups.keys()].sort((a, b) => a - b)) {
        if (c < 0) traces.push(at(groups.get(c), "unknown", { color: UNKNOWN, symbol: "circle-open" }));
        else if (colouring.kind === "right") traces.push(at(groups.get(c), colouring.names[c], { color: c ? "#D55E00" : "#0072B2", symbol: c ? "x" : "circle", size: c ? 9 : 6 }));
        else traces.push(at(groups.get(c), colouring.names[c], { color: COLOURS[c % COLOURS.length], symbol: SHAPES[Math.floor(c / COLOURS.length) % SHAPES.length] }));
      }
      return traces;
    }
    function count() {
      const p = pairsNow();
      const share = found.explained[layer];
      let text = `The two directions hold ${(100 * share).toFixed(0)} % of the variance of this layer.`;
      if (hasPairs && !p) text += " Latent pairs begin with layer 1.";
      if (p) {
        const above = p.weight.filter((w) => w >= least).length;
        const seen = p.weight.filter((w, i) => w >= least && p.observed[i]).length;
        text += ` ${above} ${above === 1 ? "pair exchanges" : "pairs exchange"} at least ${least.toPrecision(3)} times the uniform attention`;
        if (found.observed) text += `; ${seen} of them are observed edges`;
        if (p.same) {
          const known = p.same.filter((v, i) => p.weight[i] >= least && v >= 0);
          if (known.length) text += `; of ${known.length} with two known labels ${((100 * known.filter((v) => v).length) / known.length).toFixed(0)} % join one class`;
        }
        text += ".";
      }
      counts.textContent = text;
    }
    const hidden = { visible: false, range: [-400, 10400] };
    const draw = () => {
      const [low, high] = strongest();
      least = low + ((high - low) * Number(threshold.value)) / 100;
      layerName.textContent = found.layers[layer];
      thresholdName.textContent = `${least.toPrecision(3)}/n`;
      count();
      return Plotly.react(canvas, [...lines(), ...points()], themed({ height: narrow() ? 480 : 560, margin: { l: 10, r: 10, t: 10, b: 10 }, hovermode: "closest", xaxis: { ...hidden }, yaxis: { ...hidden, scaleanchor: "x" }, legend: { orientation: "h", y: -0.02, x: 0 }, uirevision: "map" }), config);
    };
    function show(i) {
      card.replaceChildren();
      if (found.sprite) {
        const { side, columns, png } = found.sprite, scale = 128 / side;
        const picture = make("div", { className: "picture" });
        picture.style.backgroundImage = `url(data:image/png;base64,${png})`;
        picture.style.backgroundSize = `${columns * 128}px auto`;
        picture.style.backgroundPosition = `${-(i % columns) * side * scale}px ${-Math.floor(i / columns) * side * scale}px`;
        card.append(picture);
      }
      card.append(make("strong", { textContent: found.titles[i] }));
      if (found.texts.length && found.texts[i]) card.append(make("p", { textContent: found.texts[i] }));
      const list = make("dl");
      for (const c of found.colourings) {
        const v = c.values[i];
        const text = c.kind === "value" ? (v === null ? "unknown" : String(v)) : v < 0 ? "unknown" : c.names[v];
        list.append(make("dt", { textContent: c.name }), make("dd", { textContent: text }));
      }
      card.append(list);
    }
    slider.addEventListener("input", () => { layer = Number(slider.value); draw(); });
    threshold.addEventListener("input", draw);
    showPairs.addEventListener("change", draw);
    showEdges.addEventListener("change", draw);
    choice.addEventListener("change", () => { colouring = found.colourings[Number(choice.value)]; draw(); });
    drawn.push(draw);
    draw().then(() => ["plotly_hover", "plotly_click"].forEach((name) => canvas.on(name, (event) => { const i = event.points[0].customdata; if (i !== undefined) show(i); })));
  }

  // Tables sort by a click on a heading: numbers as numbers, texts as texts.
  for (const table of document.querySelectorAll("table.sortable")) {
    table.tHead.addEventListener("click", (event) => {
      const heading = event.target.closest("th");
      if (!heading) return;
      const down = heading.dataset.order === "up";
      for (const one of heading.parentNode.cells) delete one.dataset.order;
      heading.dataset.order = down ? "down" : "up";
      const column = heading.cellIndex, numeric = heading.classList.contains("number");
      const key = (row) => row.cells[column].textContent;
      const compare = (a, b) => (numeric ? Number(key(a)) - Number(key(b)) : key(a).localeCompare(key(b)));
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort((a, b) => (down ? compare(b, a) : compare(a, b))));
    });
  }

  const again = () => drawn.forEach((draw) => draw());
  document.getElementById("theme").addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    again();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  data.maps.forEach(map);
  // A figure inside a closed fold has no width until the fold is opened.
  document.querySelectorAll("details").forEach((fold) => fold.addEventListener("toggle", () => fold.querySelectorAll(".js-plotly-plot").forEach((one) => Plotly.Plots.resize(one))));
  document.documentElement.dataset.ready = "yes";
})();

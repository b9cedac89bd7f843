"use strict";
// The page is whole without this script: it draws the figures, sorts, filters and switches.
(() => {
  const $ = (id) => document.getElementById(id);
  const all = (what, where = document) => [...where.querySelectorAll(what)];
  const data = JSON.parse($("data").textContent);
  const root = document.documentElement;
  const narrow = () => window.innerWidth < 740;
  const printing = window.matchMedia("print");

  // Colours are those of the theme: what is called @name in a figure is looked up when it is drawn.
  const probe = document.body.appendChild(document.createElement("i"));
  probe.hidden = true;
  const colour = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const painted = (value, key = "") => {
    if (typeof value === "string") return /color$/.test(key) && value.startsWith("@") ? colour(value.slice(1)) : value;
    if (Array.isArray(value)) return value.map((each) => painted(each));
    if (value && typeof value === "object")
      return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, painted(each, name)]));
    return value;
  };

  // Plotly comes compressed, and is unpacked once the first figure is near.
  let loading = null;
  const library = () => {
    loading ||= (async () => {
      const packed = Uint8Array.from(atob($("plotly").textContent), (letter) => letter.charCodeAt(0));
      const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
      const script = document.createElement("script");
      script.textContent = await new Response(stream).text();
      document.head.append(script);
      return window.Plotly;
    })();
    return loading;
  };

  const axis = (more = {}) => ({
    gridcolor: colour("line"),
    zerolinecolor: colour("line"),
    linecolor: colour("faint"),
    tickfont: { size: 12 },
    automargin: true,
    ...more,
    title: more.title ? { ...more.title, font: { size: 13 }, standoff: 10 } : undefined,
  });
  const config = { displayModeBar: false, responsive: true, scrollZoom: false, doubleClick: "reset" };

  // A figure: what it shows now, drawn when it is near, and again when that or the theme changes.
  const figures = new Map();
  const figure = (id, make, onClick) => {
    const place = $(id);
    if (!place) return;
    place.classList.add("waiting");
    figures.set(place, { make, onClick, drawn: false });
  };
  const draw = async (place) => {
    const known = figures.get(place);
    const made = known.make();
    known.drawn = true;
    if (!made) return place.replaceChildren();
    try {
      const Plotly = await library();
      const own = painted(made.layout || {});
      const layout = {
        paper_bgcolor: "rgba(0,0,0,0)",
        plot_bgcolor: "rgba(0,0,0,0)",
        font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: colour("text") },
        margin: { l: 56, r: 14, t: 12, b: 46 },
        hoverlabel: { bgcolor: colour("card"), bordercolor: colour("faint"), font: { color: colour("text"), size: 13 }, align: "left" },
        legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 12 } },
        dragmode: narrow() ? false : "zoom",
        ...own,
        xaxis: axis(own.xaxis),
        yaxis: axis(own.yaxis),
      };
      if (narrow() && made.bare) layout.xaxis.showticklabels = layout.yaxis.showticklabels = false;
      const traces = painted(made.data);
      // Where there is no room for labels, points are named by touching them.
      if (narrow()) traces.filter((trace) => trace.texttemplate).forEach((trace) => { trace.mode = "markers"; });
      await Plotly.react(place, traces, layout, config);
      place.classList.remove("waiting");
      if (known.onClick && !known.bound) {
        known.bound = true;
        place.on("plotly_click", known.onClick);
      }
    } catch (error) {
      place.classList.remove("waiting");
      place.innerHTML = '<p class="failed">This figure cannot be drawn here; the tables hold its numbers.</p>';
      console.error(error);
    }
  };
  const redraw = (id) => {
    const place = $(id);
    return place && figures.get(place).drawn ? draw(place) : null;
  };
  const redrawAll = () => Promise.all([...figures.keys()].filter((place) => figures.get(place).drawn).map(draw));
  const drawAll = () => Promise.all([...figures.keys()].map(draw));
  window.bitsectDrawAll = drawAll; // for printing, and for those who look at the page by program

  // Choices.
  const chosen = (name, usual) => document.querySelector(`input[name="${name}"]:checked`)?.value ?? usual;
  const picked = (id) => Number($(id)?.value ?? 0);
  all(".switch").forEach((each) => {
    each.hidden = false;
  });

  // The curve.
  figure("plot-curve", () => data.curve[chosen("curve", data.curve.latency ? "latency" : "size")]);

  // Scores.
  const scoreNotes = all("#score-notes li").map((each) => each.textContent.replace(/^[^:]*: /, ""));
  const tellScores = () => {
    if ($("score-note")) $("score-note").textContent = scoreNotes[picked("metric")] ?? "";
  };
  figure(
    "plot-scores",
    () => {
      const made = data.scores[picked("metric")][chosen("order", "network")];
      const room = $("plot-scores").clientWidth / data.scores[picked("metric")].network.layout.xaxis.tickvals?.length;
      if (!made.layout.xaxis.ticktext || room > 14) return made;
      return { ...made, layout: { ...made.layout, xaxis: { showticklabels: false, title: { text: "layers" } } } };
    },
    (event) => {
      const name = event.points[0].text;
      const place = data.names.findIndex((each) => escaped(each) === name);
      if (place >= 0) choose(place);
    },
  );
  const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  tellScores();

  // Pairs of layers.
  figure("plot-pairs", () => {
    const found = data.pairs[picked("pair-table")];
    const count = found.names.length;
    const order = chosen("pair-order", "network") === "clustered" ? found.clustered : [...found.names.keys()];
    const at = (i, j) => (i <= j ? found.upper[i * count - (i * (i - 1)) / 2 + (j - i)] : at(j, i));
    const z = order.map((i) => order.map((j) => (i === j ? null : at(i, j))));
    const sizes = z.flat().filter((each) => each !== null).map(Math.abs).sort((a, b) => a - b);
    const most = sizes[Math.floor(0.995 * (sizes.length - 1))] || sizes.at(-1) || 1;
    const names = order.map((i) => found.names[i]);
    const many = (0.62 * Math.min($("plot-pairs").clientWidth, $("plot-pairs").clientHeight)) / count < 11;
    const ticks = many
      ? { type: "category", showticklabels: false, ticks: "", title: { text: `${count} layers` } }
      : { type: "category", tickmode: "linear", dtick: 1, tickangle: -60, tickfont: { size: 10 } };
    const labels = many ? ticks : { ...ticks, tickangle: 0 };
    const signed = z.flat().some((each) => each !== null && each < -0.05 * most);
    return {
      bare: true,
      data: [{
        type: "heatmap", z, zmin: signed ? -most : 0, zmax: most, hoverongaps: false, xgap: many ? 0 : 1, ygap: many ? 0 : 1,
        colorscale: signed ? [[0, colour("cool")], [0.5, colour("page")], [1, colour("heat")]] : [[0, colour("page")], [1, colour("heat")]],
        colorbar: { thickness: 10, len: 0.8, outlinewidth: 0, tickfont: { size: 11 }, exponentformat: "power", nticks: 5 },
        x: names, y: names,
        hovertemplate: "<b>%{y}</b><br>with <b>%{x}</b><br>%{z:.4g}<extra></extra>",
      }],
      layout: {
        xaxis: { ...ticks, showgrid: false, zeroline: false, constrain: "domain" },
        yaxis: { ...labels, title: undefined, showgrid: false, zeroline: false, autorange: "reversed", scaleanchor: "x", constrain: "domain" },
        margin: { l: 10, r: 10, t: 10, b: 10 },
      },
    };
  });

  // One layer.
  const histogram = (part) => () => {
    const values = data.values[picked("layer-choice")];
    const found = values?.[part];
    const note = $(`note-${part}`);
    if (!found) {
      note.textContent = part === "weights" ? "this layer multiplies two inputs" : "none were seen";
      return null;
    }
    const width = (found.high - found.low) / found.counts.length;
    const middle = found.counts.map((_, bin) => found.low + (bin + 0.5) * width);
    const total = found.counts.reduce((sum, each) => sum + each, 0) || 1;
    const most = Math.max(...found.counts, 1);
    const shapes = [];
    note.textContent = "left in float";
    if (found.clip) {
      const [low, high] = found.clip;
      const beyond = found.beyond ? `${(100 * found.beyond).toPrecision(2)}% beyond` : "nothing beyond";
      const step = part === "weights" ? "widest step" : "step";
      note.textContent = `${found.bits} bits, ${step} ${found.step}, clip ${low} … ${high}, ${beyond}`;
      const edge = 0.02 * (found.high - found.low);
      for (const [from, to] of [[found.low - edge, low], [high, found.high + edge]])
        if (to > from) shapes.push({ type: "rect", yref: "paper", x0: from, x1: to, y0: 0, y1: 1, line: { width: 0 }, fillcolor: "@bad", opacity: 0.1, layer: "below" });
      for (const end of [low, high])
        shapes.push({ type: "line", yref: "paper", x0: end, x1: end, y0: 0, y1: 1, line: { color: "@bad", width: 1.3, dash: "dash" } });
      if (found.drawn)
        for (let code = low; code <= high + found.step / 2; code += found.step)
          shapes.push({ type: "line", yref: "paper", x0: code, x1: code, y0: -0.05, y1: 0.04, line: { color: "@text", width: 1.2 } });
    }
    return {
      data: [{
        type: "bar", x: middle, y: found.counts.map((each) => (each ? (100 * each) / total : null)), width,
        marker: { color: `@${data.colours[values.format] ?? "float"}`, line: { width: 0 } },
        hovertemplate: "near %{x:.4g}: %{y:.3g}%<extra></extra>",
      }],
      layout: {
        shapes, bargap: 0, margin: { l: 50, r: 8, t: 6, b: 30 },
        yaxis: { type: "log", ticksuffix: "%", dtick: most > 50 ? 1 : "D2", tickformat: "~g", range: [Math.log10(50 / total), Math.log10(130 * most / total)] },
        xaxis: { zeroline: false },
      },
    };
  };
  figure("plot-weights", histogram("weights"));
  figure("plot-inputs", histogram("inputs"));

  // A chosen layer is chosen everywhere.
  const strip = document.querySelector(".strip-drawing");
  const pieces = strip ? all("rect", strip) : [];
  const table = $("table");
  const rows = table ? all("tbody tr", table) : [];
  let current = -1;
  const choose = (place) => {
    const last = Math.max(pieces.length, rows.length) - 1;
    current = Math.min(Math.max(place, 0), last);
    pieces.forEach((piece, index) => piece.setAttribute("aria-selected", String(index === current)));
    strip?.classList.add("choosing");
    if (pieces[current]) {
      strip.setAttribute("aria-activedescendant", pieces[current].id);
      $("chosen").textContent = pieces[current].getAttribute("aria-label");
    }
    rows.forEach((row) => row.classList.toggle("chosen-row", Number(row.dataset.place) === current));
    if ($("layer-choice")) $("layer-choice").value = String(current);
    redraw("plot-weights");
    redraw("plot-inputs");
  };
  strip?.addEventListener("click", (event) => {
    const place = pieces.indexOf(event.target);
    if (place >= 0) choose(place);
  });
  strip?.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: current + 1, ArrowDown: current + 1, ArrowLeft: current - 1, ArrowUp: current - 1, Home: 0, End: pieces.length - 1 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    choose(moves[event.key]);
  });
  rows.forEach((row) => row.addEventListener("click", () => choose(Number(row.dataset.place))));
  $("layer-choice")?.addEventListener("change", () => choose(picked("layer-choice")));
  $("layer-before")?.addEventListener("click", () => choose(picked("layer-choice") - 1));
  $("layer-after")?.addEventListener("click", () => choose(picked("layer-choice") + 1));

  // Switches.
  const widen = () => {
    const measure = Number(chosen("strip", 0));
    pieces.forEach((piece) => {
      const [left, width] = piece.dataset.spans.split(";")[measure].split(",").map(Number);
      piece.setAttribute("x", left);
      piece.setAttribute("width", Math.max(width - Math.min(0.12 * width, 1.2), 0.2));
    });
  };
  const showPairs = () => {
    all(".worst").forEach((each) => {
      each.hidden = Number(each.dataset.pairs) !== picked("pair-table");
    });
    redraw("plot-pairs");
  };
  const reactions = {
    strip: widen,
    curve: () => redraw("plot-curve"),
    order: () => redraw("plot-scores"),
    "pair-order": () => redraw("plot-pairs"),
  };
  all(".switch input").forEach((input) => input.addEventListener("change", () => reactions[input.name]?.()));
  $("metric")?.addEventListener("change", () => {
    tellScores();
    redraw("plot-scores");
  });
  $("pair-table")?.addEventListener("change", showPairs);

  // The table: sorted by a click on a heading, filtered by words.
  const value = (row, column) => {
    const cell = row.cells[column];
    const own = cell.dataset.value;
    if (own === undefined) return cell.textContent.trim();
    return own === "" ? -Infinity : Number(own);
  };
  const headings = table ? all("thead th", table) : [];
  headings.forEach((heading, column) =>
    heading.firstElementChild.addEventListener("click", () => {
      const down = heading.getAttribute("aria-sort") === "ascending";
      headings.forEach((each) => each.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      const sign = down ? -1 : 1;
      const compared = (a, b) =>
        typeof a === "number" && typeof b === "number" ? (a < b ? -1 : a > b ? 1 : 0) : String(a).localeCompare(String(b), undefined, { numeric: true });
      const sorted = [...rows].sort((a, b) => sign * compared(value(a, column), value(b, column)));
      table.tBodies[0].append(...sorted);
    }),
  );
  const kept = (row, words) => words.every((word) => row.textContent.toLowerCase().includes(word));
  $("filter")?.addEventListener("input", () => {
    const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    rows.forEach((row) => {
      row.hidden = !kept(row, words);
      count += row.hidden ? 0 : 1;
    });
    $("filtered").textContent = words.length ? `${count} of ${rows.length} layers` : `${rows.length} ${rows.length === 1 ? "layer" : "layers"}`;
  });

  // Copying the command.
  if ($("copy") && navigator.clipboard) {
    $("copy").hidden = false;
    $("copy").addEventListener("click", async () => {
      await navigator.clipboard.writeText($("command").textContent);
      $("copy").textContent = "Copied";
    });
  }

  // The theme: as the system has it, until somebody says otherwise.
  const themes = { "": "as the system", light: "light", dark: "dark" };
  const names = Object.keys(themes);
  const stored = () => {
    try { return localStorage.getItem("bitsect-theme") ?? ""; } catch { return ""; }
  };
  const dress = (name) => {
    if (name) root.dataset.theme = name;
    else delete root.dataset.theme;
    $("theme").textContent = `Theme: ${themes[name]}`;
    try { localStorage.setItem("bitsect-theme", name); } catch { /* a page of its own keeps nothing */ }
    return redrawAll();
  };
  $("theme").hidden = false;
  $("theme").addEventListener("click", () => dress(names[(names.indexOf(root.dataset.theme ?? "") + 1) % names.length]));
  if (themes[stored()] && stored()) dress(stored());
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
  printing.addEventListener("change", drawAll);
  window.addEventListener("beforeprint", drawAll);

  // Figures are drawn when they come near.
  const near = new IntersectionObserver(
    (entries) =>
      entries.filter((entry) => entry.isIntersecting).forEach((entry) => {
        near.unobserve(entry.target);
        if (!figures.get(entry.target).drawn) draw(entry.target);
      }),
    { rootMargin: "400px" },
  );
  figures.forEach((_, place) => near.observe(place));
})();

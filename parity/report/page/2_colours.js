// Colours of ratios. Lightness alone tells them apart, so that no colour has to be seen: on light ground darker is
// worse, on dark ground lighter is worse. Blue within the limit, orange to red beyond it; grey has no floor.
const dark = matchMedia("(prefers-color-scheme: dark)");
const RAMPS = {
  light: { within: ["#eef4f9", "#9cc3e0"], beyond: ["#f2a33a", "#c8441b", "#5a0d12"], harmless: "#b79ad6", none: "#c9c9cf",
           apart: "#e6e6ea", ground: "#ffffff", ink: "#1c1c1e", dim: "#63636b", line: "#d4d4da", mark: "#000000" },
  dark: { within: ["#16212b", "#2f6389"], beyond: ["#b5611a", "#f0924a", "#ffe9cf"], harmless: "#8f6fc0", none: "#55555d",
          apart: "#2a2a2f", ground: "#18181b", ink: "#ececf0", dim: "#a0a0a8", line: "#3c3c43", mark: "#ffffff" },
};
const ramp = () => RAMPS[dark.matches ? "dark" : "light"];

function mix(stops, share) {
  const at = Math.min(Math.max(share, 0), 1) * (stops.length - 1), low = Math.min(Math.floor(at), stops.length - 2);
  const parts = [1, 3, 5].map((i) => {
    const [a, b] = [stops[low], stops[low + 1]].map((stop) => parseInt(stop.slice(i, i + 2), 16));
    return Math.round(a + (b - a) * (at - low));
  });
  return `rgb(${parts.join(",")})`;
}

// A colour for each twentieth of a decade: a map has a hundred thousand cells and few colours.
const mixed = new Map();

function ratioColour(ratio, colours = ramp()) {
  if (Number.isNaN(ratio)) return colours.none;
  const code = (ratio > LIMIT ? 1 : 0) + 2 * Math.round(20 * Math.log10(Math.min(Math.max(ratio, 1e-9), 1e12)));
  let known = mixed.get(colours);
  if (!known) mixed.set(colours, known = new Map());
  if (!known.has(code)) known.set(code, rawColour(ratio, colours));
  return known.get(code);
}

function rawColour(ratio, colours) {
  if (ratio <= LIMIT) return mix(colours.within, (Math.log10(Math.max(ratio, 1e-6) / LIMIT) + 2.5) / 2.5);
  return mix(colours.beyond, Math.log10(ratio / LIMIT) / 4.5);
}

function siteColour(i, colours = ramp()) {
  const verdict = VERDICTS[run.verdict(i)];
  if (verdict === "apart") return colours.apart;
  if (verdict === "harmless") return colours.harmless;
  if (verdict === "unjudged") return colours.none;
  return ratioColour(heat(i), colours);
}

// A canvas of the size it has on the page, sharp on a dense screen; returns what draws on it.
function sharp(canvas, width, height) {
  const dense = Math.min(window.devicePixelRatio || 1, 3);
  canvas.width = Math.round(width * dense);
  canvas.height = Math.round(height * dense);
  canvas.style.height = height + "px";
  const pen = canvas.getContext("2d");
  pen.setTransform(dense, 0, 0, dense, 0, 0);
  return pen;
}

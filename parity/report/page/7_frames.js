// Decoded frames: the two sides under a slider, and their difference, made here from the pictures.
async function showFrame(figure) {
  const [reference, candidate] = [...figure.querySelectorAll("img")], slider = figure.querySelector("input[type=range]");
  const cut = () => { candidate.style.clipPath = `inset(0 0 0 ${slider.value}%)`; };
  slider.addEventListener("input", cut);
  cut();
  await Promise.all([reference.decode(), candidate.decode()]).catch(() => null);
  const canvas = figure.querySelector("canvas"), width = reference.naturalWidth, height = reference.naturalHeight;
  if (!width || width !== candidate.naturalWidth || height !== candidate.naturalHeight) { canvas.hidden = true; return; }
  const pixels = [reference, candidate].map((image) => {
    const sheet = new OffscreenCanvas(width, height).getContext("2d");
    sheet.drawImage(image, 0, 0);
    return sheet.getImageData(0, 0, width, height);
  });
  canvas.width = width;
  canvas.height = height;
  const pen = canvas.getContext("2d"), out = pen.createImageData(width, height);
  let most = 0;
  for (let i = 0; i < out.data.length; i++) if (i % 4 !== 3) most = Math.max(most, Math.abs(pixels[0].data[i] - pixels[1].data[i]));
  for (let i = 0; i < out.data.length; i += 4) {
    let far = 0;
    for (let c = 0; c < 3; c++) far = Math.max(far, Math.abs(pixels[0].data[i + c] - pixels[1].data[i + c]));
    const [r, g, b] = mix(dark.matches ? ["#101014", "#b5611a", "#ffe9cf"] : ["#ffffff", "#f2a33a", "#5a0d12"], most ? far / most : 0).match(/\d+/g);
    out.data.set([+r, +g, +b, 255], i);
  }
  pen.putImageData(out, 0, 0);
  figure.querySelector(".most").textContent = most ? `lower picture: the difference, at most ${most} of 255` : "equal pixels";
}
for (const figure of document.querySelectorAll("figure.frame")) showFrame(figure);

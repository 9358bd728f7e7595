// offline: the page's own files, kept for times without a network. Models are kept by the runtime, by their digests.
const FAMILY = "weft-lab-", CACHE = `${FAMILY}2`;
const MODULE = self.crossOriginIsolated ? "weft-threads.wasm" : "weft.wasm";
const FILES = [
  ...["./", "lab.js", "lab.css", "icon.svg", "icon-192.png", "icon-512.png", "app.webmanifest"],
  ...["weft.js", "worker.js", "core.js", "loading.js", "thread.js", "gpu.js", "gpu-list.js", "gpu-weights.js", MODULE].map((name) => `runtime/${name}`),
];

self.addEventListener("install", (event) => {
  event.waitUntil(caches.open(CACHE).then((cache) => cache.addAll(FILES)).then(() => self.skipWaiting()));
});
self.addEventListener("activate", (event) => event.waitUntil(removeEarlier().then(() => self.clients.claim())));

// What earlier versions of this page kept.
async function removeEarlier() {
  const earlier = (await caches.keys()).filter((name) => name.startsWith(FAMILY) && name !== CACHE);
  await Promise.all(earlier.map((name) => caches.delete(name)));
}

// What the server has now; what was kept where it does not answer.
async function answer(request) {
  const cache = await caches.open(CACHE);
  try {
    const response = await fetch(request);
    if (response.ok) await cache.put(request, response.clone()).catch(() => {}); // no room: the old one stays
    return response;
  } catch (error) {
    const kept = await cache.match(request, { ignoreSearch: true });
    if (kept) return kept;
    throw error;
  }
}

self.addEventListener("fetch", (event) => {
  const { request } = event, here = new URL("./", location.href).href;
  if (request.method !== "GET" || !request.url.startsWith(here) || request.url.startsWith(`${here}models/`)) return;
  event.respondWith(answer(request));
});

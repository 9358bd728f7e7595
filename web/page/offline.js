// offline: the page's own files, kept for times without a network. Models are kept by the runtime, by their digests.
const CACHE = "weft-lab-1";
const FILES = [
  "./", "lab.js", "lab.css", "icon.svg", "app.webmanifest",
  ...["weft.js", "worker.js", "core.js", "loading.js", "weft.wasm"].map((name) => `runtime/${name}`),
];

self.addEventListener("install", (event) => {
  event.waitUntil(caches.open(CACHE).then((cache) => cache.addAll(FILES)).then(() => self.skipWaiting()));
});
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));

// What the server has now, and what was kept where it does not answer.
self.addEventListener("fetch", (event) => {
  const { request } = event, url = new URL(request.url);
  if (request.method !== "GET" || url.origin !== location.origin || url.pathname.includes("/models/")) return;
  event.respondWith((async () => {
    const cache = await caches.open(CACHE);
    try {
      const response = await fetch(request);
      if (response.ok) await cache.put(request, response.clone());
      return response;
    } catch (error) {
      const kept = await cache.match(request, { ignoreSearch: true });
      if (kept) return kept;
      throw error;
    }
  })());
});

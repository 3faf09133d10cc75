import { defineConfig } from "vite";

/** The page of the queue, and one for each page that a feature shares. */
const pages = ["index.html", "lab.html"];

export default defineConfig({
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    rollupOptions: { input: pages },
    outDir: "../src/stoker/web/page",
    emptyOutDir: true,
    // The content security policy allows no data: scripts and no inline styles, so every asset is a file.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: true,
    chunkSizeWarningLimit: 700,
  },
  server: {
    // `npm run dev` beside `stoker web --port 7717`.
    proxy: { "/api": "http://127.0.0.1:7717" },
  },
});

/** The part of a time axis that is shown. */

export interface Window {
  from: number;
  until: number;
}

/** A window that is zoomed by a factor and moved by a part of its length, within the edges. */
export function zoomedWindow(window: Window, edges: Window, factor: number, shift: number): Window {
  const length = Math.min(edges.until - edges.from, (window.until - window.from) * factor);
  const middle = (window.from + window.until) / 2 + shift * length;
  const from = Math.min(edges.until - length, Math.max(edges.from, middle - length / 2));
  return { from, until: from + length };
}

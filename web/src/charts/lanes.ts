/** What the timeline shows where: pieces of bars, their places in a lane, and the part of the time axis. */

import { moment } from "../format";
import type { Bar, Lane, Timeline } from "../types";

const LANE_HEIGHT = 92;
const HIGHEST_LANE = 150;
/** Header, filters and legend, which should be visible together with the chart. */
const AROUND = 330;
export const STRIP_HEIGHT = 7;
export const PADDING = 5;
export const TOP = 8;
export const BOTTOM = 62;

/** The height of the chart: as high as the window allows, within limits. */
export function timelineHeight(lanes: number, windowHeight: number): number {
  const count = Math.max(1, lanes);
  const lane = Math.min(HIGHEST_LANE, Math.max(LANE_HEIGHT, Math.floor((windowHeight - AROUND) / count)));
  return count * lane + TOP + BOTTOM;
}

/** One drawn piece of a bar: the past of an attempt, or what is expected. */
export interface Piece {
  lane: number;
  from: number;
  until: number;
  bottom: number;
  height: number;
  /** The part of the height that was in use, if measured. */
  used: number | null;
  forecast: boolean;
  /** Where the other piece of the same bar begins: if that one has room for the caption, this one has none. */
  pastFrom: number | null;
  bar: Bar;
}

/** The pieces of all bars. One that runs has a piece until now, and a pale one until its expected end. */
export function pieces(timeline: Timeline): Piece[] {
  const at = moment(timeline.at);
  const until = moment(timeline.until);
  return timeline.lanes.flatMap((lane, index) => [
    ...lane.bars.flatMap((bar) => pastPieces(bar, lane, index, at)),
    ...lane.forecast.map((bar) =>
      piece(bar, lane, index, moment(bar.start), bar.end ? moment(bar.end) : Math.max(until, moment(bar.start)), true),
    ),
  ]);
}

function pastPieces(bar: Bar, lane: Lane, index: number, at: number): Piece[] {
  const start = moment(bar.start);
  if (bar.end) return [piece(bar, lane, index, start, moment(bar.end), false)];
  const running = piece(bar, lane, index, start, Math.max(start, at), false);
  const expected = bar.expected_end ? moment(bar.expected_end) : 0;
  return expected > at ? [running, { ...piece(bar, lane, index, at, expected, true), pastFrom: start }] : [running];
}

function piece(bar: Bar, lane: Lane, index: number, from: number, until: number, forecast: boolean): Piece {
  return {
    lane: index,
    from,
    until,
    bottom: bar.bottom,
    height: bar.height,
    used: forecast ? null : usedPart(bar, lane),
    forecast,
    pastFrom: null,
    bar,
  };
}

/** The part of a bar that is filled; a job may use more than was reserved. */
export function usedPart(bar: Bar, lane: Lane): number | null {
  if (bar.used_bytes === null || !lane.memory_bytes || !bar.height) return null;
  return Math.min(1, bar.used_bytes / lane.memory_bytes / bar.height);
}

/** The place of a piece in its band: memory grows upwards, the strip of utilisation is below. */
export function placeInBand(
  bottom: number,
  height: number,
  bandTop: number,
  bandHeight: number,
): { y: number; height: number } {
  const room = bandHeight - 2 * PADDING - STRIP_HEIGHT - 3;
  const base = bandTop + PADDING + room;
  return { y: base - (bottom + height) * room, height: height * room };
}

/** The values, without a gap at the last minute but one: the engine writes a sample with its next transaction. */
export function bridged(values: (number | null)[]): (number | null)[] {
  const [before, missing, last] = values.slice(-3);
  if (missing !== null || before == null || last == null) return values;
  return values.with(-2, before);
}

/** Runs of known values as [time, part of the GPU's memory]. */
export function memoryRuns(
  values: (number | null)[],
  total: number,
  start: number,
  stepMs: number,
  until: number,
): [number, number][][] {
  const runs: [number, number][][] = [];
  let run: [number, number][] = [];
  values.forEach((value, index) => {
    if (value === null) {
      if (run.length) runs.push(run);
      run = [];
      return;
    }
    const part = Math.min(1, value / total);
    run.push([start + index * stepMs, part], [Math.min(until, start + (index + 1) * stepMs), part]);
  });
  if (run.length) runs.push(run);
  return runs;
}

/** A part of the time axis. */
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

const LEAST_PAST_MS = 5 * 60_000;

/** What the axis shows: the period, without the time before anything is known. */
export function edgesOf(timeline: Timeline): Window {
  const at = moment(timeline.at);
  const step = timeline.samples_step_seconds * 1000;
  const starts = timeline.lanes.flatMap((lane) => {
    const place = lane.samples.utilisation_percent.findIndex((value) => value !== null);
    const sampled = place < 0 ? [] : [moment(timeline.samples_start) + place * step];
    return [...sampled, ...lane.bars.map((bar) => moment(bar.start))];
  });
  const known = Math.min(at - LEAST_PAST_MS, ...starts);
  return {
    from: Math.max(moment(timeline.since), known),
    until: Math.max(moment(timeline.until), at + (at - known) * 0.03),
  };
}

const LEAST_FUTURE_MS = 15 * 60_000;

/** The part that is shown first: a forecast may be far longer than the past, and must not hide it. */
export function firstWindow(timeline: Timeline): Window | null {
  const at = moment(timeline.at);
  const edges = edgesOf(timeline);
  const until = at + Math.max(LEAST_FUTURE_MS, at - edges.from);
  return until < edges.until ? { from: edges.from, until } : null;
}

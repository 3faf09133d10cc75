/** The timeline: one lane per GPU, bars stacked by memory, forecast to the right of now, utilisation below each lane. */

import type {
  CustomSeriesRenderItemAPI as Api,
  CustomSeriesRenderItemParams as Params,
  CustomSeriesRenderItemReturn as Drawn,
} from "echarts";

import { isFailure } from "../changes";
import { clock, duration, moment, size } from "../format";
import type { Bar, Lane, Timeline } from "../types";
import { type Option, common, timeAxis, tip } from "./base";
import { type Palette, heat } from "./palette";
import {
  BOTTOM,
  PADDING,
  type Piece,
  type Window,
  STRIP_HEIGHT,
  TOP,
  bridged,
  edgesOf,
  memoryRuns,
  pieces,
  placeInBand,
} from "./lanes";

const TEXT_MARGIN = 4;
const CHARACTER_WIDTH = 6.3;
const LEAST_TITLE_WIDTH = 28;
const LINE_HEIGHT = 15;

interface Rectangle {
  x: number;
  y: number;
  width: number;
  height: number;
}

interface Band {
  top: number;
  height: number;
}

function band(api: Api, lane: number): Band {
  const height = (api.size?.([0, 1]) as number[])[1] ?? 0;
  return { top: (api.coord([0, lane])[1] ?? 0) - height / 2, height };
}

function clippedX(params: Params, left: number, right: number): [number, number] | null {
  const area = params.coordSys as unknown as Rectangle;
  const from = Math.max(left, area.x);
  const until = Math.min(right, area.x + area.width);
  return until < area.x || from > area.x + area.width ? null : [from, Math.max(until, from + 1.5)];
}

/** Where a piece is on the screen; null if it is outside. */
function boxOf(one: Piece, params: Params, api: Api): Rectangle | null {
  const place = band(api, one.lane);
  const sides = clippedX(params, api.coord([one.from, one.lane])[0] ?? 0, api.coord([one.until, one.lane])[0] ?? 0);
  if (!sides) return null;
  const [x, right] = sides;
  const { y, height } = placeInBand(one.bottom, one.height, place.top, place.height);
  return { x, y: y + 0.5, width: Math.max(1, right - x - 1), height: Math.max(2, height - 1) };
}

function drawPiece(one: Piece, colour: string, palette: Palette, box: Rectangle): Drawn {
  const shape = { ...box, r: 2 };
  const dashed = { fill: "none", stroke: colour, lineWidth: 1, lineDash: [3, 3], opacity: 0.7 };
  const children = one.forecast
    ? [rectangle(shape, { fill: colour, opacity: 0.13 }), rectangle(shape, dashed)]
    : [rectangle(shape, { fill: colour, opacity: 0.3 }), ...filled(one, box, colour, palette)];
  return { type: "group", children } as Drawn;
}

function rectangle(shape: object, style: object): object {
  return { type: "rect", shape, style };
}

/** The part of a bar that was in use, and the marks of a failure. */
function filled(one: Piece, box: Rectangle, colour: string, palette: Palette): object[] {
  const height = box.height * (one.used ?? 0);
  const shapes: object[] = [];
  if (height >= 1)
    shapes.push(rectangle({ ...box, y: box.y + box.height - height, height, r: 2 }, { fill: colour, opacity: 0.75 }));
  if (isFailure(one.bar)) {
    const width = Math.min(4, box.width);
    shapes.push(
      rectangle({ ...box, x: box.x + box.width - width, width }, { fill: palette.bad }),
      rectangle({ ...box, r: 2 }, { fill: "none", stroke: palette.bad, lineWidth: 1.5 }),
    );
  }
  return shapes;
}

/** The name of a job on its bar, if there is room and the other piece of the bar has none. */
function drawCaption(one: Piece, palette: Palette, box: Rectangle, params: Params, api: Api): Drawn {
  const text = captionOf(one.bar, box.width - 2 * TEXT_MARGIN);
  if (text === "" || box.height <= LINE_HEIGHT - 2) return null;
  const area = params.coordSys as unknown as Rectangle;
  const pastWidth = one.pastFrom === null ? 0 : box.x - Math.max(area.x, api.coord([one.pastFrom, one.lane])[0] ?? 0);
  if (captionOf(one.bar, pastWidth - 2 * TEXT_MARGIN) !== "") return null;
  const style = {
    text,
    x: box.x + TEXT_MARGIN,
    y: box.y + Math.min(box.height, LINE_HEIGHT + 2) / 2,
    width: box.width - 2 * TEXT_MARGIN,
    overflow: "truncate",
    ellipsis: "…",
    fontSize: 11,
    verticalAlign: "middle",
    fill: palette.text,
    stroke: `${palette.surface}e0`,
    lineWidth: 3,
    opacity: one.forecast ? 0.8 : 1,
  };
  return { type: "text", style } as Drawn;
}

/** Label and title, only the label where that is all that fits, or nothing. */
function captionOf(bar: Bar, width: number): string {
  const label = isFailure(bar) ? `✗ ${bar.label}` : bar.label;
  const labelWidth = label.length * CHARACTER_WIDTH;
  if (width < labelWidth) return "";
  return width < labelWidth + LEAST_TITLE_WIDTH ? label : `${label} ${bar.title}`;
}

function drawLane(lane: number, palette: Palette, params: Params, api: Api): Drawn {
  const area = params.coordSys as unknown as Rectangle;
  const place = band(api, lane);
  const { y, height } = placeInBand(0, 1, place.top, place.height);
  return {
    type: "group",
    silent: true,
    children: [
      rectangle({ x: area.x, y, width: area.width, height }, { fill: palette.lane }),
      {
        type: "line",
        shape: { x1: area.x, x2: area.x + area.width, y1: y, y2: y },
        style: { stroke: palette.faint, lineWidth: 1, lineDash: [2, 3], opacity: 0.6 },
      },
    ],
  } as Drawn;
}

function drawHeat(params: Params, api: Api, palette: Palette): Drawn {
  const [lane = 0, from = 0, until = 0, percent = 0] = [0, 1, 2, 3].map((dimension) => Number(api.value(dimension)));
  const sides = clippedX(params, api.coord([from, lane])[0] ?? 0, api.coord([until, lane])[0] ?? 0);
  if (!sides) return null;
  const place = band(api, lane);
  const y = place.top + place.height - PADDING - STRIP_HEIGHT;
  const shape = { x: sides[0], y, width: sides[1] - sides[0] + 0.3, height: STRIP_HEIGHT };
  return rectangle(shape, { fill: heat(percent / 100, palette.heat) }) as Drawn;
}

function drawRun(lane: number, run: [number, number][], palette: Palette, params: Params, api: Api): Drawn {
  const area = params.coordSys as unknown as Rectangle;
  const place = band(api, lane);
  const points = run.map(([at, part]) => [
    api.coord([at, lane])[0] ?? 0,
    placeInBand(part, 0, place.top, place.height).y,
  ]);
  const inside = points.filter(([x = 0]) => x >= area.x - 1 && x <= area.x + area.width + 1);
  if (inside.length < 2) return null;
  return {
    type: "polyline",
    silent: true,
    shape: { points: inside },
    style: { fill: "none", stroke: palette.text, lineWidth: 1.2, opacity: 0.6 },
  } as Drawn;
}

function barTip(bar: Bar, lane: Lane, forecast: boolean, at: number): HTMLElement {
  const start = moment(bar.start);
  const end = bar.end ? moment(bar.end) : null;
  const reserved = bar.reserved_bytes === null ? "whole GPU" : size(bar.reserved_bytes);
  return tip(`${bar.label} ${bar.title}`, [
    ["state", forecast && bar.state === "queued" ? "expected" : bar.state],
    ["group", bar.group],
    ["GPU", lane.label],
    ["start", `${forecast && bar.state === "queued" ? "~" : ""}${clock(start, at, true)}`],
    ["end", end ? clock(end, at, true) : bar.expected_end ? `~${clock(moment(bar.expected_end), at)}` : ""],
    ["time", bar.state === "queued" ? "" : duration(((end ?? at) - start) / 1000)],
    ["reserved", reserved],
    ["peak", bar.used_bytes === null ? "" : size(bar.used_bytes)],
    ["attempt", bar.attempt > 1 ? String(bar.attempt) : ""],
  ]);
}

export interface TimelineOptions {
  timeline: Timeline;
  palette: Palette;
  colour: (bar: Bar) => string;
  narrow: boolean;
  window: Window | null;
}

export function timelineOption(options: TimelineOptions): Option {
  const { timeline, palette, narrow, window } = options;
  const edges = edgesOf(timeline);
  const drawn = pieces(timeline);
  const left = narrow ? 34 : 88;
  return {
    ...common(palette),
    grid: { left, right: narrow ? 8 : 14, top: TOP, bottom: BOTTOM },
    xAxis: timeAxis(palette, { min: edges.from, max: edges.until }),
    yAxis: laneAxis(timeline.lanes, palette, narrow, left - 10),
    dataZoom: zooms(window, palette),
    // Later series cover earlier ones.
    series: [
      laneSeries(options),
      heatSeries(options),
      bookingSeries(options),
      barSeries(options, drawn),
      memorySeries(options),
      captionSeries(palette, drawn),
    ].map((series, index) => ({ type: "custom", clip: true, z: index + 1, ...series })),
  };
}

function laneAxis(lanes: Lane[], palette: Palette, narrow: boolean, width: number): Option {
  const described = (lane: Lane): string =>
    [
      `{name|GPU ${lane.label}}`,
      `{model|${lane.model}}`,
      lane.memory_bytes && !/\d\s?G/.test(lane.model) ? `{model|${size(lane.memory_bytes)}}` : "",
    ].join("\n");
  return {
    type: "category",
    inverse: true,
    data: lanes.map((lane) => lane.id),
    axisLine: { show: false },
    axisTick: { show: false },
    axisLabel: {
      color: palette.text,
      fontSize: 12,
      margin: narrow ? 6 : 10,
      width,
      overflow: "truncate",
      formatter: (_: string, index: number) => {
        const lane = lanes[index];
        return lane === undefined ? "" : narrow ? lane.label : described(lane);
      },
      rich: {
        name: { fontWeight: 600, fontSize: 12, lineHeight: 16 },
        model: { color: palette.faint, fontSize: 10, lineHeight: 14 },
      },
    },
  };
}

/** Drag and Ctrl + wheel on the chart, and a slider below it. */
function zooms(window: Window | null, palette: Palette): Option[] {
  const limits = window ? { startValue: window.from, endValue: window.until } : { start: 0, end: 100 };
  const hidden = { lineStyle: { opacity: 0 }, areaStyle: { opacity: 0 } };
  return [
    { type: "inside", filterMode: "none", zoomOnMouseWheel: "ctrl", preventDefaultMouseMove: false, ...limits },
    {
      type: "slider",
      filterMode: "none",
      height: 20,
      bottom: 8,
      showDetail: false,
      brushSelect: false,
      borderColor: palette.line,
      backgroundColor: "transparent",
      fillerColor: `${palette.accent}22`,
      handleStyle: { color: palette.surface, borderColor: palette.accent },
      moveHandleStyle: { color: palette.accent, opacity: 0.5 },
      dataBackground: hidden,
      selectedDataBackground: hidden,
      ...limits,
    },
  ];
}

function laneSeries({ timeline, palette }: TimelineOptions): Option {
  const at = moment(timeline.at);
  return {
    silent: true,
    data: timeline.lanes.map((_, index) => [at, index]),
    renderItem: (params: Params, api: Api) => drawLane(params.dataIndex, palette, params, api),
  };
}

/** The strip of utilisation below each lane. */
function heatSeries({ timeline, palette }: TimelineOptions): Option {
  const at = moment(timeline.at);
  const start = moment(timeline.samples_start);
  const step = timeline.samples_step_seconds * 1000;
  const cells = timeline.lanes.flatMap((lane, index) =>
    bridged(lane.samples.utilisation_percent).flatMap((value, place) =>
      value === null ? [] : [[index, start + place * step, Math.min(at, start + (place + 1) * step), value]],
    ),
  );
  const gpu = (index: number): string => `GPU ${timeline.lanes[index]?.label ?? ""}`;
  return {
    data: cells,
    encode: { x: [1, 2], y: 0 },
    renderItem: (params: Params, api: Api) => drawHeat(params, api, palette),
    tooltip: {
      formatter: ({ value: [lane = 0, from = 0, , percent = 0] }: { value: number[] }) =>
        tip(gpu(lane), [
          ["utilisation", `${percent}%`],
          ["time", clock(from, at)],
        ]),
    },
  };
}

function barSeries({ timeline, palette, colour }: TimelineOptions, drawn: Piece[]): Option {
  const at = moment(timeline.at);
  return {
    id: "bars",
    ...pieceSeries(drawn, (one, box) => drawPiece(one, colour(one.bar), palette, box)),
    cursor: "pointer",
    tooltip: {
      formatter: ({ dataIndex }: { dataIndex: number }) => {
        const one = drawn[dataIndex];
        const lane = one && timeline.lanes[one.lane];
        return one && lane ? barTip(one.bar, lane, one.forecast, at) : "";
      },
    },
    markLine: {
      silent: true,
      symbol: "none",
      data: [{ xAxis: at }],
      lineStyle: { color: palette.now, width: 1.5, type: "solid" },
      label: { show: false },
    },
  };
}

/** The memory that all processes use; the top of a lane is all that the GPU has. */
function memorySeries({ timeline, palette }: TimelineOptions): Option {
  const at = moment(timeline.at);
  const start = moment(timeline.samples_start);
  const step = timeline.samples_step_seconds * 1000;
  const runs = timeline.lanes.flatMap((lane, index) => {
    const found = lane.memory_bytes
      ? memoryRuns(bridged(lane.samples.used_bytes), lane.memory_bytes, start, step, at)
      : [];
    return found.map((run) => ({ lane: index, run }));
  });
  return {
    silent: true,
    data: runs.map(({ lane, run }) => [lane, run[0]?.[0] ?? 0]),
    encode: { x: 1, y: 0 },
    renderItem: (params: Params, api: Api) => {
      const one = runs[params.dataIndex];
      return one ? drawRun(one.lane, one.run, palette, params, api) : null;
    },
  };
}

/** Times for which a user has booked a GPU: dashed frames with the name. */
function bookingSeries({ timeline, palette }: TimelineOptions): Option {
  const at = moment(timeline.at);
  const booked = timeline.lanes.flatMap((lane, index) => lane.bookings.map((booking) => ({ index, booking })));
  return {
    data: booked.map(({ index, booking }) => [index, moment(booking.begin), moment(booking.end)]),
    encode: { x: [1, 2], y: 0 },
    renderItem: (params: Params, api: Api) => {
      const [lane = 0, from = 0, until = 0] = [0, 1, 2].map((dimension) => Number(api.value(dimension)));
      const sides = clippedX(params, api.coord([from, lane])[0] ?? 0, api.coord([until, lane])[0] ?? 0);
      return sides && drawBooking(booked[params.dataIndex]?.booking.user ?? "", sides, band(api, lane), palette);
    },
    tooltip: {
      formatter: ({ dataIndex }: { dataIndex: number }) => {
        const booking = booked[dataIndex]?.booking;
        if (!booking) return "";
        const [begin, end] = [booking.begin, booking.end].map((time) => clock(moment(time), at));
        return tip(`booked by ${booking.user}`, [["from", begin ?? ""], ["until", end ?? ""], ["why", booking.why]]);
      },
    },
  };
}

function drawBooking(user: string, [x, right]: [number, number], place: Band, palette: Palette): Drawn {
  const { y, height } = placeInBand(0, 1, place.top, place.height);
  const shape = { x, y, width: right - x, height: Math.max(2, height) };
  const text = { text: `booked: ${user}`, x: x + TEXT_MARGIN, y: y + 2, width: right - x - 2 * TEXT_MARGIN };
  const look = { overflow: "truncate", ellipsis: "…", fontSize: 11, fill: palette.text };
  const children = [
    rectangle(shape, { fill: palette.text, opacity: 0.08 }),
    rectangle(shape, { fill: "none", stroke: palette.text, lineWidth: 1.5, lineDash: [6, 4] }),
    ...(text.width > LEAST_TITLE_WIDTH ? [{ type: "text", style: { ...text, ...look } }] : []),
  ];
  return { type: "group", children } as Drawn;
}

function captionSeries(palette: Palette, drawn: Piece[]): Option {
  return {
    silent: true,
    ...pieceSeries(drawn, (one, box, params, api) => drawCaption(one, palette, box, params, api)),
  };
}

/** Something that is drawn for each piece that is on the screen. */
function pieceSeries(drawn: Piece[], draw: (one: Piece, box: Rectangle, params: Params, api: Api) => Drawn): Option {
  return {
    data: drawn.map(({ lane, from, until }) => [lane, from, until]),
    encode: { x: [1, 2], y: 0 },
    renderItem: (params: Params, api: Api) => {
      const one = drawn[params.dataIndex];
      const box = one && boxOf(one, params, api);
      return box ? draw(one, box, params, api) : null;
    },
  };
}

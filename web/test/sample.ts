/** Small values of the API for tests. */

import type { Bar, Changes, DeviceLine, JobLine, Lane, Status, Timeline } from "../src/types";

export const GIB = 2 ** 30;

export function job(label: string, more: Partial<JobLine> = {}): JobLine {
  return {
    id: Number(label.split(".")[0]),
    label,
    tasks: 1,
    name: `name ${label}`,
    command: "python train.py",
    state: "running",
    group: "",
    priority: 0,
    gpus: 1,
    devices: ["0"],
    vram_bytes: 8 * GIB,
    used_bytes: null,
    submitted: "2026-11-17T12:00:00Z",
    started: "2026-11-17T12:00:10Z",
    seconds: 10,
    limit_seconds: null,
    expected_start: null,
    expected_end: null,
    why: "",
    run: "",
    hook: false,
    vram_mode: "size",
    reserved_bytes: 8 * GIB,
    held_bytes: null,
    peak_vram_bytes: null,
    utilisation_percent: null,
    speed: null,
    last_seen: null,
    title: `title ${label}`,
    progress: null,
    interrupted: false,
    place: null,
    expected_seconds: null,
    waited_ratio: null,
    preemptible: "",
    ended: null,
    ...more,
  };
}

export function device(id: string, more: Partial<DeviceLine> = {}): DeviceLine {
  return {
    id,
    label: id,
    model: "A100",
    kind: "nvidia",
    memory_bytes: 40 * GIB,
    used_bytes: 0,
    ours_bytes: 0,
    reserved_bytes: 0,
    others_bytes: 0,
    utilisation_percent: 0,
    temperature_celsius: 40,
    power_watts: 50,
    problem: "",
    drained: null,
    jobs: [],
    leases: [],
    strangers: [],
    combined_speed: null,
    elsewhere: [],
    bookings: [],
    ...more,
  };
}

export function status(jobs: JobLine[], devices: DeviceLine[] = []): Status {
  return {
    schema: "",
    at: "2026-11-17T12:00:20Z",
    host: "lab7",
    version: "1",
    simulated: false,
    engine: {
      running: true,
      pid: 1,
      version: "1",
      since: null,
      seen: null,
      trouble: "",
      draining: false,
      paused: null,
      silence: "",
    },
    devices,
    jobs,
    counts: { active: 1, waiting: 1, held: 0 },
    hidden: { active: 0, waiting: 0, held: 0 },
    today: {},
    expected_empty: null,
    notes: [],
    filtered: false,
    groups: [],
    users: [],
    interrupted: [],
    failures: [],
    total: null,
    web: "",
  };
}

export function changes(more: Partial<Changes> = {}): Changes {
  const { engine, counts, hidden, today, expected_empty, notes, failures } = status([]);
  return {
    schema: "",
    at: "2026-11-17T12:00:30Z",
    jobs: [],
    gone: [],
    devices: [],
    changed: [],
    more: false,
    engine,
    counts,
    hidden,
    today,
    expected_empty,
    notes,
    failures,
    ...more,
  };
}

export function bar(label: string, more: Partial<Bar> = {}): Bar {
  return {
    job: 1,
    label,
    title: label,
    group: "",
    attempt: 1,
    state: "done",
    start: "2026-11-17T12:00:00Z",
    end: "2026-11-17T12:10:00Z",
    expected_end: null,
    reserved_bytes: 8 * GIB,
    used_bytes: 4 * GIB,
    bottom: 0,
    height: 0.2,
    ...more,
  };
}

export function lane(bars: Bar[], forecast: Bar[] = []): Lane {
  const samples = {
    utilisation_percent: [],
    used_bytes: [],
    reserved_bytes: [],
    temperature_celsius: [],
    power_watts: [],
  };
  return { id: "gpu-0", label: "0", model: "A100", memory_bytes: 40 * GIB, bars, forecast, bookings: [], samples };
}

export function timeline(lanes: Lane[]): Timeline {
  return {
    schema: "",
    at: "2026-11-17T12:20:00Z",
    host: "lab7",
    simulated: false,
    engine_running: true,
    since: "2026-11-17T11:00:00Z",
    until: "2026-11-17T13:00:00Z",
    expected_empty: null,
    samples_start: "2026-11-17T11:00:00Z",
    samples_step_seconds: 60,
    lanes,
    left_out: 0,
    without_gpu: 0,
    colours: {},
  };
}

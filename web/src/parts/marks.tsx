/** Small marks: the state of a job, progress, memory. Colour is never the only sign. */

import type { JSX } from "preact";

import { isActive, isOver } from "../changes";
import { percent, size, sizeOf } from "../format";
import { type DeviceLine, type JobLine, TONES, type Tone } from "../types";

const SIGNS: Record<Tone, string> = { active: "▶", waiting: "◌", held: "‖", good: "✓", bad: "✗", faint: "–" };

/** The tone of the state of a job or a sweep. */
export function toneOf(state: string): Tone {
  const tones: Record<string, Tone> = { ...TONES, interrupted: "bad" };
  return tones[state] ?? "faint";
}

export function StateMark({ state }: { state: string }): JSX.Element {
  const tone = toneOf(state);
  return (
    <span class={`state ${tone}`}>
      <span class="sign" aria-hidden="true">
        {SIGNS[tone]}
      </span>
      {state}
    </span>
  );
}

export function Progress({ part, label = "progress" }: { part: number; label?: string }): JSX.Element {
  const shown = Math.min(1, Math.max(0, part));
  return (
    <span class="progress">
      <span
        class="track"
        role="progressbar"
        aria-label={label}
        aria-valuemin={0}
        aria-valuemax={100}
        aria-valuenow={Math.floor(shown * 100)}
      >
        <span class="done" style={{ width: `${shown * 100}%` }} />
      </span>
      <span class="number">{percent(part)}</span>
    </span>
  );
}

/** What a job holds of its reservation, or held at most; what will be reserved for one that waits. */
export function jobMemory(job: JobLine): string {
  if (!job.gpus) return "–";
  const used = job.held_bytes ?? job.used_bytes;
  if (isActive(job) && used !== null)
    return job.reserved_bytes === null ? size(used) : sizeOf(used, job.reserved_bytes);
  if (isOver(job) && job.peak_vram_bytes !== null)
    return job.reserved_bytes === null ? size(job.peak_vram_bytes) : sizeOf(job.peak_vram_bytes, job.reserved_bytes);
  if (job.reserved_bytes !== null) return size(job.reserved_bytes);
  return job.vram_mode === "auto" ? "auto" : "all";
}

interface Parts {
  ours: number;
  reserved: number;
  others: number;
}

/** The parts of a GPU's memory, from 0 to 1: used by us, reserved beyond that, used or claimed by others. */
export function memoryParts(device: DeviceLine): Parts {
  const total = device.memory_bytes ?? 0;
  if (!total) return { ours: 0, reserved: 0, others: 0 };
  const part = (bytes: number, room: number): number => Math.max(0, Math.min(room, bytes / total));
  const ours = part(device.ours_bytes, 1);
  const others = part(device.others_bytes, 1 - ours);
  const reserved = part(device.reserved_bytes - device.ours_bytes, 1 - ours - others);
  return { ours, reserved, others };
}

export function MemoryBar({ device }: { device: DeviceLine }): JSX.Element {
  const { ours, reserved, others } = memoryParts(device);
  const text = `${size(device.ours_bytes)} used by our jobs, ${size(device.reserved_bytes)} reserved, ${size(device.others_bytes)} others, of ${size(device.memory_bytes)}`;
  return (
    <div class="memory-bar" role="img" aria-label={text} title={text}>
      <span class="ours" style={{ width: `${ours * 100}%` }} />
      <span class="reserved" style={{ width: `${reserved * 100}%` }} />
      <span class="others" style={{ width: `${others * 100}%` }} />
    </div>
  );
}

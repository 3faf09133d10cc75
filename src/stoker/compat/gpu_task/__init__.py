"""Gpu_task."""

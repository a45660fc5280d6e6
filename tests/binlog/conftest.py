"""Quiet settings for hypothesis: machines are shared and slow, so no example has a deadline."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("binlog", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("binlog")

"""Audits of whole projects every night: configured in one file, incremental, on a schedule, with notifications."""

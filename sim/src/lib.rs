//! Operations, models, schedules.

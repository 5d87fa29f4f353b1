//! Tests of the index against a model, and under threads.

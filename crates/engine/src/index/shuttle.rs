//! Interleavings of the index, explored by `shuttle`.

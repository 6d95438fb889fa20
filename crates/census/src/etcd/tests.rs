//! Against a stand-in that misbehaves.

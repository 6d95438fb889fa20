//! The census against what the lab itself wrote.

mod answers;
mod api;
mod classes;
mod etcd_files;
mod ground_truth;
mod hostile;
mod kine;
mod live;
mod others;
mod program;
mod reports;
mod residue;

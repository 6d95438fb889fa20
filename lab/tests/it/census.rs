//! The census against what the lab itself wrote.

mod classes;
mod etcd_files;
mod ground_truth;

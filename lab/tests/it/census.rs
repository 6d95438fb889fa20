//! The census against what the lab itself wrote.

mod answers;
mod classes;
mod etcd_files;
mod ground_truth;
mod live;
mod reports;
mod residue;

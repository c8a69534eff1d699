// Package rootfs makes what a test machine boots from: Debian's kernel, an
// initial RAM file system with cmd/nodeinit in it, and a read-only root disk with
// the tools that a Kubernetes node and the tests of storage code need.
//
// All of it is made once and kept in the cache folder; which packages go in is
// decided here and nowhere else. The root disk holds nothing of this project, so
// it stays good for as long as the list of packages does.
package rootfs

// Package command runs programs, each in a process group of its own that it kills as a whole
// when the context ends. It bounds their output, and they end with this process.
//
// A process that waits in the kernel for an unresponsive device cannot be killed. Stuck counts
// it until it is gone, and until then Run starts no other program for its device.
package command

// Package volatile serves disks that lose what was not flushed when the power is cut,
// as real ones with a write cache do.
//
// Killing QEMU alone proves little: every write that was acknowledged to the machine
// has reached the host by then, flushed or not. A volatile disk takes back, at the cut,
// writes that came after the last flush: all of them, or the latest, or some of their
// sectors and not others, as its Loss and chance have it. What was flushed stays.
//
// It owns the file behind the disk and a unix socket on which it speaks NBD, the
// protocol by which QEMU reaches it. It knows nothing of machines. A sector (512
// bytes) is written whole or not at all.
package volatile

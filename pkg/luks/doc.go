// Package luks makes, opens and reads volumes that are encrypted in LUKS2
// format, with a key that is kept elsewhere.
//
// It owns the layout of such a volume on its device, the State that the header shows,
// and the calls of cryptsetup. It never decides when a volume is made or opened, never
// keeps a key, and knows nothing of file systems, Kubernetes and CSI.
//
// Vocabulary: the header is the first HeaderBytes of the device; the rest is
// what the volume holds, in cipher text. The mapping is the device-mapper device
// that shows it in plain text. A key opens the header, in which the cipher's own
// random key lies.
//
// Invariants: a key is handed to cryptsetup by its standard input and is in no
// argument, no environment, no file, no log and no error. A header names the
// volume that it was made for, and no other's is ever changed. Which State a
// volume is in is on the device alone, and changes by one write that cryptsetup
// makes twice, with checksums: a crash leaves the state before or the one after.
//
// Callers: pkg/driver makes and opens volumes, pkg/lvmd looks at headers, and the
// controller adds HeaderBytes to sizes.
package luks

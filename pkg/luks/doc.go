// Package luks makes, opens and inspects volumes in LUKS2 format. The keys are
// stored elsewhere.
//
// It defines a volume's layout on its device and the State that its header
// shows, and runs cryptsetup. It never decides when to make or open a volume,
// stores no key, and knows nothing of file systems, Kubernetes and CSI.
//
// Vocabulary: the header is the first HeaderBytes of the device; the rest is
// the volume's content, in cipher text. The mapping is the device-mapper device
// with the plain text. A key opens the header, which contains the cipher's own
// random key.
//
// Invariants: a key reaches cryptsetup by standard input only, and appears in
// no argument, environment, file, log or error. A header names its volume, and
// no other volume's header is ever changed. Only the device records the State.
// It changes by one write that cryptsetup makes twice, with checksums: a crash
// leaves the old or the new state.
//
// pkg/driver makes and opens volumes, pkg/lvmd inspects headers, and the
// controller adds HeaderBytes to sizes.
package luks

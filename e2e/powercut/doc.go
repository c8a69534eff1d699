// Package powercut proves that what lvmd acknowledged survives power cuts: it is there
// afterwards, with its data, and nothing else is left.
//
// A rig is a machine with real LVM and lvmd on three volatile disks (package volatile), two
// for the volume group and one for the journal. A ledger holds what its load asked
// lvmd for and which replies had reached the host. The power is cut while the load
// runs, the disks lose what was not flushed, and after the next boot the ledger is
// held against what lvmd and LVM say.
package powercut

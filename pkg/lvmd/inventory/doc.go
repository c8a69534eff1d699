// Package inventory owns what lvmd knows of its volume groups in memory: groups, thin pools,
// volumes and their states, what is reserved of the free space, what is reported, and the watchers of
// that. One lock guards all of it, which is taken in this package only.
//
// It does no I/O, and calls no function of a caller under its lock: a caller asks for admission, runs a
// command, commits its effect, or applies a scan, looks at what is returned, and acts on it.
//
// Vocabulary
//
//	state       where a volume is between its admission and its end
//	phase       what the journal keeps of a state, so that a start knows where to go on
//	claim       a state in which one operation has the volume
//	transition  an allowed change of state
//	admission   the decision that an operation may begin, with the space reserved for it
//	effect      what a command that succeeded changed
//
// Callers: package lvmd.
package inventory

// Package journal keeps lvmd's durable state in one bbolt file:
//
//	volumes   a record of each volume: its identity and phase
//	groups    the zeroed space of each volume group, and the group's UUID
//	devices   the physical volumes that lvmd makes: intents first, then memories
//	pools     intents to make thin pools
//	meta      the file's format, the newest leaders, and the classes' bindings
//
// The format is a number. Opening a file migrates an earlier format, and rejects a later one with a
// FormatError.
//
// No other package uses bbolt. Callers decide what a record means.
//
// A method that returns nil has made its effect durable. The error of a failed write matches
// apierror.ErrNotStored, and means no effect. A Journal is safe for concurrent use. One transaction
// writes at a time: in the order of locks, those that a caller takes within it come after it.
package journal

// Package journal keeps on the disk what lvmd must remember over a restart, in one bbolt file:
//
//	volumes   a record of each volume: who it is, and how far it has come
//	groups    what is known to hold zeroes in a volume group, and the group's UUID
//	devices   the physical volumes that lvmd makes: intents first, then memories
//	pools     intents to make thin pools
//	meta      the file's format, the newest leaders, and the classes' bindings
//
// The format is a number: a file of an earlier one is migrated when it is opened, and one of a later
// one is refused, with a FormatError.
//
// It alone knows bbolt. It decides nothing: what a record means is for its callers to say.
//
// Every method that returns nil has made its effect durable. An error of one that writes matches
// apierror.ErrNotStored, and then there is no effect. A Journal is safe for concurrent use.
// One transaction writes at a time: locks that a caller takes within one come after it, in the
// order of locks.
package journal

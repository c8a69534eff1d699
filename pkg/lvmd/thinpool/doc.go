// Package thinpool makes the thin pools that the configuration names: it decides on their sizes
// and where they lie, makes them by commands of LVM, and removes what commands that were killed
// left of them.
//
// A pool that is there is adopted as it is, if new volumes show nothing of earlier ones in it.
//
// While LVM makes a pool, the journal has an intent, which says what is left when LVM or lvmd
// is killed. What becomes a pool has Tag from its first part on.
//
// It runs no command but those of the interface LVM, keeps no state, and knows nothing of the
// volumes in pools, nor of how pools grow.
package thinpool

// Package thinpool makes the configured thin pools: it decides their sizes and places, makes them
// with LVM, and removes the remnants of killed commands.
//
// It adopts an existing pool as it is, if the pool zeroes new blocks.
//
// While LVM makes a pool, the journal has an intent, which identifies the remnants if LVM or lvmd
// is killed. Parts of a pool have Tag from the first on.
//
// It runs commands of the interface LVM only, keeps no state, and knows neither the volumes in
// pools nor how pools are grown.
package thinpool

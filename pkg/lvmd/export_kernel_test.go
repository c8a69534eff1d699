//go:build kernel

package lvmd

import "github.com/carve-csi/carve/pkg/lvmd/reclaim"

// DieAt has f called at every place to die at, see crash.
func (o *Options) DieAt(f func(place string)) { o.crashPoint = f }

// JournalEachWipedChunk has progress journaled as often as can be.
func (o *Options) JournalEachWipedChunk() { o.wipeCheckpoint = reclaim.WipeChunk }

//go:build kernel

package lvmd

import "github.com/carve-csi/carve/pkg/lvmd/reclaim"

// CrashAt has f called at every crash point, see crash.
func (o *Options) CrashAt(f func(place string)) { o.crashPoint = f }

// JournalEachWipedChunk has progress journaled as often as can be.
func (o *Options) JournalEachWipedChunk() { o.wipeCheckpoint = reclaim.WipeChunk }

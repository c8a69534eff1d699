//go:build kernel

package lvmd

import "github.com/carve-csi/carve/pkg/lvmd/reclaim"

// CrashAt calls f at every crash point, see crash.
func (o *Options) CrashAt(f func(place string)) { o.crashPoint = f }

func (o *Options) JournalEachWipedChunk() { o.wipeCheckpoint = reclaim.WipeChunk }

//go:build kernel

package lvmd

// DieAt has f called at every place to die at, see crash.
func (o *Options) DieAt(f func(place string)) { o.crashPoint = f }

// JournalEachWipedChunk has progress journaled as often as can be.
func (o *Options) JournalEachWipedChunk() { o.wipeCheckpoint = wipeChunk }

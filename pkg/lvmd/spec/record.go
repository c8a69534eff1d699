package spec

import (
	"time"

	"github.com/carve-csi/carve/pkg/blockdev"
)

// Phase is how far a volume has come. Its values are stored.
type Phase string

// Phases of volumes.
const (
	// Creating is an intent. At start, it is undone, or carried on if it is a copy with
	// progress on record, unless LVM or what is on the volume shows that it may have been handed out.
	Creating Phase = "creating"
	// Ready is that of a volume that can be used.
	Ready Phase = "ready"
	// Deleting is a tombstone.
	Deleting Phase = "deleting"
	// Unfinished means that neither the journal nor LVM says whether the volume was handed
	// out, and what should be on it is not found. It is kept as it is, and not handed out.
	Unfinished Phase = "unfinished"
	// DataLost means that the key of an encrypted volume is gone. It is being reformatted.
	DataLost Phase = "emptied"
)

// Record is what the journal keeps of a volume: who it is, as its tags say
// too, and how far it has come, which only the journal knows.
type Record struct {
	// ID is the volume's, and its name in LVM; Group is the name of its volume group.
	ID    string   `json:"id"`
	Group string   `json:"group"`
	Phase Phase    `json:"phase"`
	Ident Identity `json:"identity"`
	// Tagged is true of an intent whose volume has a tag until it is handed out, see
	// spec.TagMaking. Versions before that tag made intents without.
	Tagged bool `json:"tagged,omitempty"`
	// Wiped is how many bytes of a volume in phase deleting are known to read
	// as zeroes, durably, from its beginning.
	Wiped int64 `json:"wiped,omitempty"`
	// NotZeroed is true when something was not wiped, because its class says so.
	NotZeroed bool `json:"soiled,omitempty"`
	// Copied is how many bytes of a volume in phase creating are durably copied from its
	// beginning, and Source how much was written to the source when the copy began.
	Copied int64              `json:"copied,omitempty"`
	Source blockdev.WriteMark `json:"source,omitzero"`
	// Created is when the volume was asked for.
	Created time.Time `json:"created"`
	// Reformatted is when an encrypted volume was last reformatted, or zero.
	Reformatted time.Time `json:"emptied,omitzero"`
	// Encrypted is true when the node plugin has made the encrypted volume of one with
	// names.EncryptionLUKS.
	Encrypted bool `json:"encrypted,omitempty"`
	// Provisional is true of a volume of which it is not known that a PersistentVolume names it. No
	// Pod has had it. A volume without this, or without spec.TagProvisional, is none.
	Provisional bool `json:"provisional,omitempty"`
	// AdoptedFrom is the logical volume's name before it was adopted, until that is confirmed.
	AdoptedFrom string `json:"adoptedFrom,omitempty"`
}

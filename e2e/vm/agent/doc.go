// Package agent runs commands inside a test machine, from outside it.
//
// The server is part of the machine's first process; the client is in the
// process that started the machine. Between them lies one reliable byte stream
// (a virtio serial port), which yamux divides into streams: each request has a
// stream of its own. No network is needed, so the agent works in a machine
// whose network is cut or was never set up, and no one but the owner of the
// serial port can use it.
//
// A stream starts with the request, one line of JSON. Then come frames in both
// directions: a byte of kind, four bytes of length (big endian) and the payload.
// The server's last frame says how the request ended. Closing the stream early
// kills what runs.
package agent

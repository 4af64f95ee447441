// Package imagetest checks the Dockerfile where there may be no engine to build it: it reads the file, runs its build steps
// in a directory of its own, and starts the server in the root file system that comes of them.
package imagetest

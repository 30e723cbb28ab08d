// The viewer of episodes and of logged decisions.
"use strict";

function viewerCard() { return null; }
